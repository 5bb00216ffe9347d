use std::fs;
use std::path::Path;

use engine::fact::Fact;
use engine::ledger::{Ledger, Step};
use engine::snapshot::{Error, Snapshot, write};
use wal::Identity;

use super::log::{PLACES, check_ledger, order};
use super::{Recipe, scratch};

const IDENTITY: Identity = Identity(0x5eed);

/// A way to make the file, the sequence, and facts in bytes; behind them the operations on the
/// ledger.
pub fn check(bytes: &[u8]) {
    let directory = scratch();
    let path = directory.path().join("a.snap");
    let mut recipe = Recipe::new(bytes);
    let way = recipe.byte();
    let file = if way == 0xff { recipe.rest.to_vec() } else { drafted(way, &mut recipe) };
    fs::write(&path, file).expect("written");
    let mut ledger = match load(&path) {
        Ok(ledger) => ledger,
        Err(error) => {
            assert!(error.to_string().contains("a.snap"), "{error}");
            return;
        }
    };
    check_ledger(&ledger);
    let again = directory.path().join("b.snap");
    write(&again, IDENTITY, &ledger, || true).expect("written").expect("to the end");
    assert_same(&load(&again).expect("our own"), &ledger);
    while !recipe.is_over() {
        if ledger.sequence() == u64::MAX {
            return;
        }
        if let Step::Append(entry) = ledger.step(&order(&mut recipe)) {
            ledger.apply(&entry, ledger.sequence() + 1, 0);
        }
    }
    check_ledger(&ledger);
}

fn load(path: &Path) -> Result<Ledger, Error> {
    Snapshot::open(path)?.ledger(Ledger::new(PLACES))
}

fn assert_same(one: &Ledger, other: &Ledger) {
    assert_eq!(one.digest(), other.digest());
    assert_eq!(one.sequence(), other.sequence());
    assert_eq!(one.watermark(), other.watermark());
    assert_eq!(one.balances(), other.balances());
    assert_eq!(one.places_left(), other.places_left());
}

/// A file with a correct CRC and, unless `way` damages them, a correct digest and number of facts.
fn drafted(way: u8, recipe: &mut Recipe<'_>) -> Vec<u8> {
    let sequence = recipe.number();
    let (mut facts, mut digest, mut count) = (Vec::new(), 0_u128, 0_u64);
    for _ in 0..way & 0x0f {
        let tag = recipe.byte();
        let length = Fact::bytes_of(tag).unwrap_or_default();
        let bytes = recipe.take(length);
        facts.push(tag);
        facts.extend(bytes);
        if let Ok(fact) = Fact::decode(tag, bytes) {
            digest = digest.wrapping_add(fact.digest());
        }
        count += 1;
    }
    if way & 0x10 != 0 {
        digest = digest.wrapping_add(recipe.number().into());
    }
    if way & 0x20 != 0 {
        count = recipe.number();
    }
    let mut file = b"snap\r\n\x1a\n".to_vec();
    file.extend(1_u32.to_le_bytes());
    file.extend(0_u32.to_le_bytes());
    file.extend(IDENTITY.0.to_le_bytes());
    file.extend(sequence.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(digest.to_le_bytes());
    file.extend(facts);
    let crc = crc32fast::hash(&file);
    file.extend(crc.to_le_bytes());
    file
}
