//! Named points at which a test may kill this process, and faults of its disk. Without the feature
//! `crash` they do nothing. The program lists and arms the points.

use std::io;
use std::path::Path;

/// A point.
#[cfg(feature = "crash")]
pub(crate) fn point(name: &'static str) {
    fail::fail_point!(name);
}

/// A point.
#[cfg(not(feature = "crash"))]
pub(crate) fn point(_name: &'static str) {}

/// A step on a file, before it is done.
///
/// # Errors
/// The error of an armed fault.
#[cfg(feature = "crash")]
pub(crate) fn meet(file: &Path, step: &'static str) -> io::Result<()> {
    wal::fault::meet(file.parent().expect("a file is in a directory"), step)
}

/// A step on a file.
///
/// # Errors
/// None.
#[cfg(not(feature = "crash"))]
pub(crate) fn meet(_file: &Path, _step: &'static str) -> io::Result<()> {
    Ok(())
}
