//! Real nodes of the transaction manager, real PostgreSQL, and a real chain behind an endpoint that
//! lies on demand. Behind each test, everything that left and everything on chain is compared with
//! the rows ([`place::Place::judge`]).

use alloy_primitives::Address;

use crate::harness::ACCOUNTS;

/// A database, a chain and nodes.
mod place;

/// Owners that die, stand still, or are cut off.
mod owners;

/// Clocks that are wrong: of machines, and of PostgreSQL.
mod clocks;

/// A signer elsewhere, over HTTPS.
mod remote;

/// Answers of endpoints to a send.
mod sends;

/// Receipts and confirmations.
mod blocks;

/// Reorganizations.
mod reorgs;

/// The feed of events.
mod feed;

/// Tokens and other contracts.
mod contracts;

/// Creates of many clients over several nodes.
mod creates;

/// Nonces: the chain ahead, gaps, refusals that spend none.
mod nonces;

/// Resends, raised prices, cancels, commands.
mod resends;

/// A crowd of clients while nodes, ways and chain fail by chance.
mod soak;

/// The signer of these tests.
const SIGNER: Address = ACCOUNTS[0];
/// The payee.
const PAYEE: Address = ACCOUNTS[5];
