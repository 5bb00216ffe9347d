//! Transactions on an EVM chain. Nothing here does I/O or reads a clock.
//!
//! In reading order: [`payload`] (the wish of a client), [`fee`] (prices of gas), [`state`] (the
//! one table of states), [`tx`] (a transaction as its owner holds it), [`class`] (the meaning of an
//! endpoint's answer), [`view`] (the chain as it was seen), [`proof`] (the payment in a receipt),
//! and [`decide`], which moves a transaction.

pub mod class;
pub mod decide;
pub mod fee;
mod named;
pub mod payload;
pub mod proof;
pub mod state;
pub mod tx;
pub mod view;
