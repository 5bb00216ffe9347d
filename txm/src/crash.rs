//! Named points at which a test may kill this process. Without the feature `crash` they do nothing.
//! The program lists and arms the points.

/// A point.
#[cfg(feature = "crash")]
pub(crate) fn point(name: &'static str) {
    fail::fail_point!(name);
}

/// A point.
#[cfg(not(feature = "crash"))]
pub(crate) fn point(_name: &'static str) {}
