//! The nouns of a transfer, one definition each. This crate has no I/O, no async code and no clock,
//! so every other crate and every process role can use it.
//!
//! - [`account`]: a user and the kinds of accounts.
//! - [`asset`]: an asset, its precision and its limits; the catalog of all assets.
//! - [`amount`]: a positive number of smallest units.
//! - [`code`]: every code that an answer can have, with its HTTP status.
//! - [`transfer`]: the states of a transfer and the one table of its transitions; in
//!   [`transfer::op`] the table of operations, in [`transfer::claims`] the claims of each state
//!   about each operation.
//! - [`form`]: the checks that each layer repeats on its input.
//! - [`hold`]: money of Funding that is set apart under a key, and the one rule of its acts.
//! - [`chain`]: an error with its causes as one line of text.
//! - [`posting`]: places, legs, and the one calculation of the amounts that a posting sets apart.
//! - [`shortage`]: a resource that is short, and how much of it is left.

#[macro_use]
mod listed;

pub mod account;
pub mod amount;
pub mod asset;
pub mod chain;
pub mod code;
pub mod form;
pub mod hold;
pub mod posting;
pub mod shortage;
pub mod transfer;
