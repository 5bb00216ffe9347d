//! ubscore moves money between two stores that share no transaction: the **Funding** account in
//! PostgreSQL and the **Spot** account in UBSCore, one pinned thread that holds all balances in RAM
//! and writes every change to a log. It never makes or loses any.
//!
//! # The way of a transfer
//!
//! ```text
//!   client --> http --> validation --> coordinator --+--> postgres      Funding: one flight,
//!                                       |    ^       |                  one commit a batch
//!                                       v    |       +--> adapters --> engine --> wal
//!                                      step (decides)                  Spot: ring, core, sync
//! ```
//!
//! [`http`] reads a request into a [`validation::Draft`]. A checked one goes to the [`coordinator`]
//! worker that owns the user's accounts. From then on the transfer no longer needs its request.
//! [`coordinator::step`] decides, by the one table in [`domain::transfer`]. The worker commits a
//! batch of decisions to PostgreSQL, or asks UBSCore through [`adapters`]. UBSCore ([`engine`])
//! decides, appends to the log, applies, and answers once the log is synced.
//!
//! A deposit from outside and a withdrawal to it have the same worker, but no state machine:
//! PostgreSQL commits, UBSCore's log records ([`engine::external`]), then the caller gets its
//! answer.
//!
//! # Where to find it
//!
//! - A withdraw is refused: on Spot in `engine/src/op/order.rs` (`judge`), on Funding in
//!   `src/postgres/flight/draft.rs` (`book`).
//! - Money of Funding is set apart: by the rule in `domain/src/hold.rs` (`decide`), in
//!   `src/postgres/flight/draft.rs` (`hold`).
//! - A state changes: `src/coordinator/step.rs` (`decide`), by the table in
//!   `domain/src/transfer.rs`. A Spot balance changes in `engine/src/op/order.rs` (`apply`).
//! - An answer is released: UBSCore's in `engine/src/threads.rs` (`answer_all`). The client's comes
//!   after a commit (`src/coordinator/worker/replies.rs`), or once UBSCore's record proves the end;
//!   that commit follows (`show_end` in `src/coordinator/worker/drive.rs`).
//! - The log is synced: `wal/src/syncer.rs` (`Syncer::sync`), called in `engine/src/threads.rs`.
//! - A route is declared: `ROUTES` in `src/http/public/routes.rs` (users) and in
//!   `src/http/ops/routes.rs` (operators).
//!
//! The rule of every operation is one row of `domain/src/transfer/op.rs`; the claims of every state
//! are in `domain/src/transfer/claims.rs`. `docs/decisions.md` gives the reasons.
//!
//! # The crates
//!
//! [`domain`] has the nouns, [`engine`] is UBSCore, [`wal`] has the bytes of its log, and [`bell`]
//! wakes its threads. Their manifests prove that none of them knows PostgreSQL, HTTP or an async
//! runtime. The crate `stream` has the messages of venues. The rest is this crate.
//! `tests/tidy/graph.rs` holds the imports between its rooms.
//!
//! # The rooms, in reading order
//!
//! 1. The nouns, one definition each: [`domain::amount`], [`domain::asset`], [`domain::account`],
//!    [`domain::transfer`], [`domain::code`], [`domain::shortage`]; then [`pause`], [`approval`].
//! 2. [`validation`]: every check of a request, once.
//! 3. [`engine`]: UBSCore. Start with [`engine::ledger`], which is pure.
//! 4. [`postgres`]: the schema, the meaning of errors, the fence, and the store of transfers, which
//!    decides Funding ([`postgres::flight`]).
//! 5. [`adapters`]: the two participants behind one trait.
//! 6. [`coordinator`]: one worker a shard. Start with [`coordinator::step`], which is pure.
//! 7. [`audit`]: the checks of the money. [`audit::conservation`] compares both stores while they
//!    work. [`audit::failover`] compares everything after PostgreSQL has changed. [`audit::halt`]
//!    stops everything by closing the [`gate`].
//! 8. [`checkpointer`]: snapshots at run time, and the removal of segments that they cover.
//! 9. [`events`]: each step of a transfer for its user: streams, webhooks, and their retention.
//!    [`endpoint`] signs and posts; [`participant`] asks the participants of transactions.
//!    [`transaction`] declares their states; [`transactions`] moves them, by one worker behind the
//!    coordinator. Start with [`transactions::step`], which is pure. [`recharge`] decides the
//!    payments of channels: start with [`recharge::decide`]. [`channels`] speaks with payment
//!    channels. [`till`] drives each order at its channel: start with [`till::step`], which is
//!    pure.
//! 10. [`http`]: listener, tokens, routes, JSON; `public` for users, `ops` for operators.
//!     [`quota`] bounds the requests of one user.
//!     [`stream`](mod@stream) is the door of venues: sessions of numbered commands to UBSCore.
//! 11. [`data_dir`] (the paths in the data directory, and its lock), [`stores`] (from the
//!     configuration to both stores), [`task`] (the supervisor of background tasks).
//! 12. [`commands`], [`cli`] and [`role`] (the roles of users): the binary.
//!     [`commands::roles::primary`] starts the service in stages; a role without the engine begins
//!     with `commands::roles::process` alone. [`service`] runs the same in another program.
//! 13. The seams: [`clock`], [`entropy`], and [`environment`] (the variables of child processes).
//!     The rest: [`config`], [`format`](mod@format) (text or JSON), [`telemetry`], [`alert`],
//!     [`last_words`] (the alert of a process that must end), [`release`], [`exit`] (every exit
//!     code), and [`crash`] (where tests kill it).
//!
//! # What keeps the money
//!
//! - A participant decides each (transfer, operation) once. The decision is durable with its
//!   effect, and every repeat gets it: successes and refusals alike ([`engine::recorded`],
//!   columns `funding_*` and `refund_*` of `transfers_tb`).
//! - Before a participant is asked, the intent to ask is durable.
//! - An answer that is no decision moves nothing: [`domain::transfer::Event`] has no word for it.
//!   The participant is asked again, without end.
//! - No answer leaves that a crash could take back: PostgreSQL's commit or the log's sync is first.
//! - One process writes: flights of a shard are numbered, and of two writers of one number one
//!   fails ([`postgres::flight`], [`postgres::incarnation`]).
//!
//! # Glossary
//!
//! Words of this house, and the field's words for them. A word that is not here has its usual
//! meaning.
//!
//! | word | meaning | field's word |
//! |---|---|---|
//! | participant | a store that decides operations: Funding or Spot | participant |
//! | UBSCore | the engine of Spot: thread, ledger, log (`trading` in metrics) | ledger engine |
//! | operation | WITHDRAW, DEPOSIT, REFUND, EXT_DEPOSIT or EXT_WITHDRAW | posting, leg |
//! | decision | a recorded success or refusal, which never changes | outcome |
//! | unknown outcome | a time-out or lost answer: it may have been done | in doubt |
//! | claim | a state's word on an operation: succeeded, refused, undecided | invariant |
//! | outcome map | UBSCore's decisions by transfer and operation | idempotency table |
//! | order number | the number of an accept; it begins with the incarnation | sequence |
//! | call | one piece of work that a worker hands to its store | request |
//! | flight | one commit of one worker, with its batch of calls | commit batch |
//! | journal | one row a flight; its key is the fence | commit log |
//! | fusion | several steps of one transfer in one flight | step coalescing |
//! | parked | a call that the store does not take now; it has a next try | deferred |
//! | in hand | open in a worker: queued, asked, or waiting for a retry | in progress |
//! | mark of an end | a final state that is committed after the answer | deferred write |
//! | replied state | a state as answers show it (`ToldState` in OpenAPI) | status |
//! | in flight | money that has left the source and not reached the target | in transit |
//! | incarnation | the number of a start; the fence compares it | epoch, fencing token |
//! | fence | PostgreSQL refuses a write of an earlier incarnation | fencing |
//! | identity | the random number that binds a log and a database | cluster id |
//! | pin | the one PostgreSQL server that a process uses | server affinity |
//! | watermark | the order number below which UBSCore may forget decisions | low-water mark |
//! | `WMARK` | its record, in a dump of the log | truncation record |
//! | evicted | removed from the outcome map (`departed` in a snapshot's diff) | garbage-collected |
//! | durable mark | the last synced record; PostgreSQL keeps it as a claim | flushed LSN |
//! | torn end | bytes at the log's end that were never acknowledged | torn write |
//! | damage | an acknowledged record that is no longer readable | corruption |
//! | spare, roll | a prepared segment; the change to the next one | preallocation, rotation |
//! | cut, of stores | reads of both stores that show one state | consistent cut |
//! | cut, of a log | its damaged end is given up, by `wal repair` | truncation |
//! | snapshot store | the folder of snapshots and their names | checkpoint directory |
//! | checkpointer | the thread that makes snapshots (`keeper` in its halts) | checkpointer |
//! | place | room for an account, a balance or an outcome | slot |
//! | gate, pass | the lock that a halt closes; its guard while money moves | read-write lock |
//! | halt | no money moves until `ubscore resume`; reads continue | circuit breaker |
//! | pause | new transfers of a direction or asset are refused | admission stop |
//! | round | one run of the audit; a kept round saves its progress | reconciliation |
//! | room | a module of this crate with its files | module |
//! | reservation | a transfer's share of a daily limit until its accept is decided | reservation |
//! | standing | the state of a user's limits, in an answer | quota status |
//! | dead letter | an event without a 2xx answer after all tries | dead letter |
//! | bell | wakes a sleeping thread, and loses no wake-up | event count |
//! | last words | the alert and log line of a process that must end | crash report |

pub mod adapters;
pub mod alert;
pub mod approval;
pub mod audit;
pub mod channels;
pub mod checkpointer;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod coordinator;
pub mod crash;
pub mod data_dir;
pub mod endpoint;
pub mod entropy;
pub mod environment;
pub mod events;
pub mod exit;
pub mod format;
pub mod gate;
pub mod http;
pub mod last_words;
pub mod participant;
pub mod pause;
pub mod postgres;
pub mod quota;
pub mod recharge;
pub mod release;
pub mod role;
pub mod service;
pub mod stores;
pub mod stream;
pub mod task;
pub mod telemetry;
pub mod till;
pub mod transaction;
pub mod transactions;
pub mod validation;
