//! The store of the transaction manager: the schema `txm`, leases, and the fenced writes.
//!
//! Its database may be the core's, another one, or on another server. So it has migrations of its
//! own (`config/migrations-txm/`, history in `txm.migrations`) and functions of its own
//! (`src/postgres/txm/sql/`, applied at a start).
//!
//! In reading order: [`schema`] (migrations and functions), [`store`] (the fenced store of a node),
//! `listener` (the news of other nodes), [`details`] and [`reads`] (the rows for the listener), `rows` (rows to values
//! and back), `call` (one statement, and the meaning of its failure).

mod call;
pub mod details;
mod listener;
pub mod reads;
mod rows;
pub mod schema;
pub mod store;
