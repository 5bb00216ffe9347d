//! The log's claims, from outside.
#![allow(clippy::unwrap_used, missing_docs)]

/// The bytes on disk never change their meaning.
mod format;

/// After any damage to a file, a prefix with every durable record comes back, or a refusal.
mod damage;
/// Segments that do not belong together are refused.
mod refusal;

/// No crash loses a durable record, and none makes the log refuse.
mod crash;
/// A failing medium stops the log; the log waits if nothing is lost.
mod failure;

/// An operator gives up a part on purpose, and nothing before it is lost.
mod cut;

/// A copy equals the log after a crash at its last record.
mod copy;

/// The same on real files.
mod directory;
/// A reader reads beside the log and changes nothing.
mod reader;

/// The only helpers.
mod harness;
