//! ubscore moves money between two stores that share no transaction: the **Funding** account in PostgreSQL and the **Spot**
//! account in UBSCore, one pinned thread that holds all balances in RAM and writes every change to a log. It never makes
//! or loses any.
//!
//! # The way of a transfer
//!
//! ```text
//!   client --> http --> validation --> coordinator --+--> postgres        Funding: one flight, one commit a batch
//!                                       |    ^       |
//!                                       v    |       +--> adapters --> engine --> wal      Spot: ring, core, sync
//!                                      step (decides)
//! ```
//!
//! [`http`] reads a request into a [`validation::Draft`]; a checked one goes to the [`coordinator`] worker that owns the
//! user's accounts. From there on it lives without the request: [`coordinator::step`] decides, by the one table in
//! [`domain::transfer`], and the worker commits a batch of decisions to PostgreSQL or asks UBSCore through [`adapters`]. UBSCore
//! ([`engine`]) decides, appends to the log, applies, and answers once the log is synced.
//!
//! A deposit from outside and a withdrawal to it have the same worker, but no state machine: PostgreSQL commits, UBSCore's
//! log records ([`engine::external`]), then the caller has its answer.
//!
//! # The rooms, in reading order
//!
//! 1. The nouns, one definition each: [`domain::amount`], [`domain::asset`], [`domain::account`], [`domain::transfer`], [`domain::code`], [`domain::shortage`],
//!    [`pause`], [`approval`].
//! 2. [`validation`]: every check, once.
//! 3. [`engine`]: UBSCore. Start with [`engine::ledger`], which is pure. The bytes below it are the crate [`wal`], and
//!    what wakes its threads is the crate [`bell`].
//! 4. [`postgres`]: the schema, what errors mean, who may write, and the store of transfers.
//! 5. [`adapters`]: the two participants behind one trait.
//! 6. [`coordinator`]: one worker a shard. Start with [`coordinator::step`], which is pure.
//! 7. [`audit`]: what watches over the money. [`audit::conservation`] compares both stores while they work,
//!    [`audit::failover`] compares everything after PostgreSQL has changed, and [`audit::halt`] stops everything by closing
//!    the [`gate`].
//! 8. [`checkpointer`]: snapshots while it runs, and the end of what they cover.
//! 9. [`events`]: each step of a transfer for its user, as it happens: the relay, streams, webhooks.
//! 10. [`http`]: listeners, tokens, routes, JSON. [`quota`] bounds the requests of one user.
//! 11. [`commands`] and [`cli`]: the binary. [`commands::serve`] puts everything together.
//! 12. The seams: [`clock`], [`entropy`], and [`environment`], which child processes get. The rest: [`config`],
//!     [`telemetry`], [`alert`], [`release`], [`exit`] (every exit code), and [`crash`] (where tests kill the process).
//!
//! # What keeps the money
//!
//! - A participant decides each (transfer, operation) once; the decision is durable with its effect, and every repeat is
//!   told it. Successes and refusals alike ([`engine::recorded`], `transfer_operations`).
//! - Whoever is asked, the intent to ask is durable before.
//! - An answer that is no decision moves nothing: [`transfer::Event`] has no word for it. It is asked again, for ever.
//! - Nothing is answered that a crash could take back: PostgreSQL's commit or the log's sync comes first.
//! - One process writes: each writing transaction locks the incarnation it belongs to ([`postgres::incarnation`]).

pub mod adapters;
pub mod alert;
pub mod approval;
pub mod audit;
pub mod checkpointer;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod coordinator;
pub mod crash;
pub mod data_dir;
pub mod entropy;
pub mod environment;
pub mod events;
pub mod exit;
pub mod gate;
pub mod http;
pub mod last_words;
pub mod pause;
pub mod postgres;
pub mod quota;
pub mod release;
pub mod stores;
pub mod telemetry;
pub mod validation;
