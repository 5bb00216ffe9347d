//! The log's claims, from outside.
#![allow(clippy::unwrap_used, missing_docs)]

/// The bytes on disk never change their meaning.
mod format;

/// Whatever is done to a file, what comes back is a prefix with every durable record, or a refusal.
mod damage;
/// Segments that do not belong together are refused.
mod refusal;

/// No crash loses a durable record, and none makes the log refuse.
mod crash;
/// A medium that fails stops the log, or is waited for where nothing is lost.
mod failure;

/// A part that is given up on purpose, and nothing before it.
mod cut;

/// A copy is what a crash at its last record would have left.
mod copy;

/// The same on real files.
mod directory;
/// A reader looks on and changes nothing.
mod reader;

/// The only helpers.
mod harness;
