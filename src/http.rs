//! HTTP/1.1 as clients and operators meet it: listeners, tokens, routes, JSON.
//!
//! A request passes these files in this order:
//!
//! 1. [`listener`] accepts the connection, `seats` bounds how many there are, [`tls`] secures it.
//! 2. [`public`] or [`ops`] finds the handler in its table of routes (`route`).
//! 3. [`service::Intake`] gives the request an id, checks its token ([`auth`]) and reads its body
//!    ([`request`]).
//! 4. The handler answers with a body of [`wire`], or refuses with a [`refusal::Refusal`].
//!
//! Payment channels have a listener of their own, [`callbacks`]; nodes of the transaction manager
//! have two, [`txm`].
//! Transactions have bodies of their own in [`transaction_body`]. [`openapi`] describes the public
//! routes; `schema` holds the schemas of single values.

pub mod answer;
pub mod auth;
mod balances;
pub mod callbacks;
pub mod channel_sums;
mod event_id;
pub mod idempotency;
pub mod kept_notices;
pub mod listener;
pub mod openapi;
pub mod ops;
mod options;
pub mod public;
pub mod readiness;
pub mod recharge_body;
pub mod recharge_event;
pub mod refusal;
pub mod request;
pub mod request_id;
pub mod rotation;
pub mod route;
mod schema;
pub(crate) mod seats;
pub mod service;
mod settle;
pub mod tls;
mod transaction_answer;
pub mod transaction_body;
pub mod transaction_event;
pub mod txm;
pub mod wire;
