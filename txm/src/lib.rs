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
//! In reading order: [`store`] (the fenced store), [`signer`] (keys), [`rpc`] (endpoints).

pub mod options;
pub mod rpc;
pub mod signer;
pub mod store;
