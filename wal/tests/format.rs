//! The bytes on disk never change their meaning.

use wal::memory::Memory;
use wal::{Identity, Recovery, segment_name};

use crate::harness::{Entry, SMALL, append, read};

const IDENTITY: Identity = Identity(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);

/// Every byte of the first segment that is not zero: an empty record, a padded one, and one that
/// knows the first two durable.
const GOLDEN: &[(usize, &str)] = &[
    (0, "77 61 6c 0d 0a 1a 0a 00 d5 a0 b0 eb 01 00 00 00"),
    (16, "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"),
    (32, "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00"),
    (48, "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"),
    (64, "88 e2 ce ce 00 10 00 00 00 40 00 00 00 00 00 00"),
    (4096, "8b fb a9 e0 28 00 00 00 01 00 00 00 00 00 00 00"),
    (4112, "88 e2 ce ce 01 01 00 00 00 00 00 00 00 00 00 00"),
    (4128, "00 00 00 00 00 00 00 00"),
    (4136, "09 74 62 b1 2d 00 00 00 02 00 00 00 00 00 00 00"),
    (4152, "8b fb a9 e0 02 01 00 00 88 77 66 55 44 33 22 11"),
    (4168, "00 00 00 00 00 00 00 00 68 65 6c 6c 6f 00 00 00"),
    (4184, "7a 30 bf 96 30 00 00 00 03 00 00 00 00 00 00 00"),
    (4200, "09 74 62 b1 ff 01 00 00 ff ff ff ff ff ff ff ff"),
    (4216, "02 00 00 00 00 00 00 00 38 20 62 79 74 65 73 2e"),
];

/// Goal: a log written by any version-1 program is read by any other. Method: compare with bytes
/// whose checksums were computed by another program (zlib, by way of Python).
#[test]
fn a_segment_is_golden_to_the_byte() {
    let memory = Memory::new();
    let (mut log, _) =
        Recovery::open(memory.clone(), 0, 0).unwrap().start(IDENTITY, SMALL).unwrap();
    let entries = [
        Entry { kind: 1, time_ns: 0, payload: vec![] },
        Entry { kind: 2, time_ns: 0x1122_3344_5566_7788, payload: b"hello".to_vec() },
        Entry { kind: 255, time_ns: u64::MAX, payload: b"8 bytes.".to_vec() },
    ];
    append(&mut log, &entries[0]).unwrap();
    append(&mut log, &entries[1]).unwrap();
    log.syncer.sync().unwrap();
    append(&mut log, &entries[2]).unwrap();

    let mut golden = vec![0; 16 * 1024];
    for (offset, hex) in GOLDEN {
        for (at, digits) in hex.split_whitespace().enumerate() {
            golden[offset + at] = u8::from_str_radix(digits, 16).unwrap();
        }
    }
    let written = memory.content(&segment_name(1)).unwrap();
    let first = written.iter().zip(&golden).position(|(written, golden)| written != golden);
    assert_eq!(first, None, "first difference; written {:02x?}", &written[4096..4256]);
    assert_eq!(written.len(), golden.len());

    let other = Memory::new();
    other.put(&segment_name(1), golden);
    assert_eq!(read(&other).unwrap().0, entries);
}
