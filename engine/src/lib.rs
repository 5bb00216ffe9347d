//! UBSCore: one pinned thread owns all Spot balances in RAM, and writes each change to the log
//! before its answer. This crate knows no PostgreSQL, no HTTP, no async runtime and no clock.
//!
//! From the bottom up; no two files import each other:
//!
//! 1. The words: [`text`], [`totals`], [`places`], [`record`] (the kinds of records), [`venue`]
//!    (the front of a venue's session), [`order`], [`posted`], [`named`] and [`external`] (the
//!    operations that a record may hold), [`recorded`] (one decision), [`command`] (a question to
//!    UBSCore),
//!    [`entry`] (a record of the log), [`fact`] (a part of a ledger, for snapshots and digests).
//! 2. The tables: `memory` (huge pages, prefetching), `table` (rows by key, all memory taken at the
//!    start), `accounts` (rows of accounts and balances), `holds` (amounts set apart), `venues`
//!    (windows of answers), `outcomes` (the idempotent processed map).
//! 3. The state: [`ledger`] holds it, `op` changes it with one file for each command, [`builder`]
//!    makes it from facts, [`snapshot`] keeps it in a file, [`replay`] makes it from the log.
//! 4. The threads: [`ring`] (commands in, answers out), `slab` (commands by name on the ring),
//!    `line` (commands and replies of venues),
//!    `session` (a venue's end of its line), [`core`] (state and log together),
//!    `threads` (the core thread, the sync thread, the preparing thread), `guard` (their
//!    panics end the process), `running` (all of them together), [`notice`] (their reports to the
//!    process), `open` (from the files to a running engine). `crash` has the points at which tests
//!    kill the process.
//!
//! Where every operation is judged and booked: `op/posting.rs`. Where the log is synced and an
//! answer released: `threads::Disk`, on the sync thread, or on the core thread for a command
//! without company.

mod accounts;
pub mod builder;
pub mod command;
pub mod core;
mod crash;
mod crossed;
pub mod entry;
pub mod external;
pub mod fact;
mod guard;
#[cfg(test)]
mod history;
mod holds;
pub mod ledger;
mod line;
mod memory;
pub mod named;
pub mod notice;
mod op;
mod open;
mod options;
pub mod order;
mod outcomes;
pub mod places;
pub mod posted;
mod reader;
pub mod record;
pub mod recorded;
pub mod replay;
pub mod ring;
mod running;
mod session;
mod shared;
mod slab;
pub mod snapshot;
mod table;
pub mod text;
mod threads;
pub mod totals;
#[cfg(test)]
mod trading;
pub mod venue;
mod venues;
mod wait;

pub use self::guard::{LAST_WORDS, end_soon};
pub use self::open::{Closed, Error, Progress, Replayed};
pub use self::options::Options;
pub use self::reader::VenueReader;
pub use self::running::{Covered, Engine, Handle};
pub use self::session::VenueSession;
