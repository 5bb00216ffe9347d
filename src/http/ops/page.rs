//! The size of a page of an operators' list.

/// Entries of a page, if the query has no limit.
pub(super) const LIMIT_DEFAULT: u32 = 100;
/// The most entries of a page.
pub(super) const LIMIT_MAX: u32 = 1_000;
