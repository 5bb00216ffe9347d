//! The transaction manager: it gives each transaction of a signer the next nonce, signs it, stores
//! it, sends it, and follows it until nothing can take it back.
//!
//! ```text
//!   Desk::create --> Owner (one a signer) --> TxStore::create    nonce and row in one commit
//!                      |   ^
//!                      v   |
//!       chain::decide (pure) --> TxStore::write (fenced, one statement) --> effects: sign, send
//! ```
//!
//! In reading order: [`store`] (the fenced store, and its [`news`]), [`signer`] (keys), [`rpc`]
//! (endpoints), [`node`] (leases and tasks of one process), [`desk`] (requests), [`prepare`] (the
//! checks before a nonce).

mod crash;
pub mod desk;
mod lease_keeper;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod news;
pub mod node;
pub mod open_rows;
pub mod options;
pub mod owner;
pub mod policy;
pub mod prepare;
pub mod refusal;
pub mod rpc;
mod seats;
pub mod signer;
pub mod store;
pub mod tools;
