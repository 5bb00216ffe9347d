//! The log's claims, from outside.
#![allow(clippy::unwrap_used, missing_docs)]

/// What a directory of real files holds to.
mod directory;
/// The only helpers.
mod harness;
