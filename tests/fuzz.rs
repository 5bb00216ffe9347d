#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets are crates of their own")]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Goal: the states that fuzzing has reached stay covered. Method: every file of every corpus
/// through its target, on any toolchain.
#[test]
fn every_corpus_replays() {
    let mut failed = Vec::new();
    for (name, check) in targets::TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = fs::read_dir(&corpus).expect("a corpus for each target");
        let mut files: Vec<_> = files.map(|entry| entry.expect("readable").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", corpus.display());
        for file in files {
            let bytes = fs::read(&file).expect("readable");
            if catch_unwind(AssertUnwindSafe(|| check(&bytes))).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
