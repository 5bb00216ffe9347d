//! The promises of the code that reads bytes from outside: one function per target, which panics if
//! a promise is broken. `tests/fuzz.rs` calls the same functions with every file of `fuzz/corpus`.
//!
//! Checksums would stop a fuzzer. So most inputs are not the bytes themselves but a recipe for
//! them. The recipe writes correct checksums, and damages them on purpose.

/// Callbacks and bills of payment channels.
pub mod channel;
/// TOML text as a configuration.
pub mod configuration;
/// Entries of a row of Funding's journal.
pub mod entries;
/// Bytes of a venue's session, in frames or not.
pub mod frames;
/// Segments of a log, damaged or not, through recovery, reader and replay.
pub mod log;
/// Payloads of the log, and facts of a snapshot.
pub mod payload;
/// A request's target, headers and body.
pub mod request;
/// A snapshot's file.
pub mod snapshot;

use std::path::Path;

use tempfile::TempDir;

/// A target's function.
type Check = fn(&[u8]);

/// Every target: its name, which is that of its corpus, and its function.
pub const TARGETS: [(&str, Check); 11] = [
    ("bill_wechat", channel::bill),
    ("callback_stripe", channel::stripe),
    ("callback_wechat", channel::wechat),
    ("configuration", configuration::check),
    ("entries", entries::check),
    ("frames", frames::check),
    ("log", log::check),
    ("payload", payload::check),
    ("request", request::check),
    ("snapshot", snapshot::check),
    ("stripe_header", channel::stripe_header),
];

/// A directory for one run, in memory if possible: targets sync their files.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a directory")
}

/// A recipe, read from its beginning. Behind its end it is all zeros.
struct Recipe<'a> {
    rest: &'a [u8],
}

impl<'a> Recipe<'a> {
    fn new(rest: &'a [u8]) -> Recipe<'a> {
        Recipe { rest }
    }

    fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Up to `length` bytes.
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    fn byte(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    fn short(&mut self) -> usize {
        usize::from(u16::from_le_bytes(self.bytes()))
    }

    /// A number: small ones and those at the borders in a byte, any other in nine.
    fn number(&mut self) -> u64 {
        match self.byte() {
            0xff => u64::MAX,
            0xfe => u64::MAX - 1,
            0xfd => i64::MAX as u64,
            0xfc => 1 << 63,
            0xfb => u64::from(u32::MAX),
            0xfa => u64::from_le_bytes(self.bytes()),
            small => u64::from(small),
        }
    }
}
