//! The integration tests: the real binary, a real PostgreSQL, the real log, used from outside.
//!
//! One embedded PostgreSQL serves a whole run; each test has a database and a data directory of its
//! own.

/// The only helpers: a database, a data directory, the binary, an HTTP client, the sums.
mod harness;

/// Transfers from the client's side: both ways, replayed, in a crowd, while another waits.
mod http;

/// Clients that follow `examples/`.
mod examples;

/// A user's own transfers: listed, filtered, in pages, and awaited.
mod list;

/// The API against its own description, as an outside tool reads it.
mod openapi;

/// Every refusal code of the API, and their order of precedence.
mod refusals;

/// The limits of one user per second and per day.
mod limits;

/// Sessions of venues: messages and sockets.
mod stream;

/// A matching engine that trades with money of Spot.
mod trading;

/// The operators' routes: external money, accounts and assets.
mod admin;

/// The keys of tokens: kinds, names, and their change while requests flow.
mod keys;

/// The operators' console in a real browser.
mod browser;

/// TLS on both listeners, and other protocols on the same ports.
mod tls;

/// The start of a successor: its table locks, and the settings of its connections.
mod starts;

/// HALT: nothing new begins, nothing moves, and all of it continues after a resume.
mod halt;

/// Pauses: requests that are refused after their answer, and requests that continue.
mod pauses;

/// Actions of two operators: requested, approved once, rejected, expired.
mod approvals;

/// The console's reads: the caller, one user's accounts, transfers by any known detail.
mod console;

/// Transfers that do not end: found, tried at once, and ended by an operator.
mod operator;

/// The stream of transfer states to their users.
mod events;

/// The same stream to an endpoint, signed and in order.
mod webhooks;

/// Participants of transactions: every answer, the check of their duties, and the example.
mod participants;

/// Each alert under its condition: log event, metric, webhook.
mod alerts;

/// An operator's monitoring: metrics, rules, dashboard, and log lines.
mod watch;

/// All kinds of wrong input.
mod bad_input;

/// Transactions over both stores, services and callers.
mod transactions;

/// A crowd of transactions, while the server and its PostgreSQL are killed again and again.
mod payments;

/// Requests of services about transactions.
mod services;

/// Targets that refuse: the source gets its money back, both ways.
mod refunds;

/// Kills, restarts and lost connections.
mod crash;

/// The server and its PostgreSQL killed under load, again and again.
mod soak;

/// What a steady load leaves behind.
mod growth;

/// Deaths at every point under every answer of a participant.
#[cfg(feature = "crash")]
mod answers;

/// The load generator.
mod load;

/// Malicious clients.
mod hostile;

/// Power cuts: synced data survives, other data by chance.
#[cfg(feature = "crash")]
mod power;

/// A disk that refuses, writes half, is slow, or fails at a fatal step.
#[cfg(feature = "crash")]
mod disk;

/// Flights: what PostgreSQL compares before it writes one, and which of several stands.
mod flights;

/// Holds of Funding: acts and repeats on a real PostgreSQL, and the view of users and operators.
mod holds;

/// Take-overs, flights of unknown end, and rows that are changed by hand.
mod takeovers;

/// One idempotency key, used several times at once.
mod twice;

/// Reads while flights are out: exact sums, and states that never step back.
mod reads;

/// PostgreSQL killed, frozen, full, cut off in the worst moment, or promoted too early.
mod faults;

/// Whole runs from a seed, in virtual time: crashes, lost answers, late ones, and a judge.
mod simulation;

/// Snapshots, and a log of bounded size.
mod snapshot;

/// Every fault of a log or a snapshot: its report, and its effect on a start.
mod matrix;

/// The watermark: which outcomes may be forgotten, when, and with which totals.
mod watermark;

/// One log, one database, one process: refused and fenced processes.
mod ownership;

/// The audit: changes outside the service.
mod audit;

/// Funding's journal: parts, damaged rows, deletion.
mod journal;

/// The bounds of that journal: its bytes, and the transfers that stay open.
mod bounds;

/// A database with lost rows, repaired from the log.
mod repair;

/// Files of earlier versions, kept for ever, and of later ones, refused by name.
mod golden;

/// The doctor's findings about a machine, a PostgreSQL and a configuration.
mod doctor;

/// One user's account statement across both stores.
mod statement;

/// Postings of venues in the log, snapshots, statements and audits.
mod postings;

/// Postings of services, by name, beside those of venues.
mod named;

/// A log that is cut at a record, and its repair from PostgreSQL.
mod walrepair;

/// Both stores at one moment, copied while they work, and restored elsewhere.
mod backup;

/// The operators' runbook, command by command.
mod runbook;

/// The corpora of the fuzz targets, once more.
mod fuzz;

/// The parts of a release beside the binary: unit, image, completions, manual pages, changelog.
mod packaging;

/// Each layer called directly with input that the layer above it would have refused.
mod layers;

/// Recharges without a listener: orders and payments in flights, repeats, returns, guards.
mod recharges;

/// The daily bills of channels, with a simulated channel.
mod bills;
/// The public routes and the events of recharges, with a simulated channel.
mod recharge_api;
/// The walk of the guide to recharges, line by line.
mod recharge_guide;
/// SIGKILL at each named point of a recharge, with a simulated channel.
#[cfg(feature = "crash")]
mod recharge_kills;
/// The operators' side of recharges, with a simulated channel.
mod recharge_ops;
/// Recharges of a crowd while their channels, the server and its PostgreSQL fail by chance.
mod recharge_soak;

/// Bonuses of recharges.
mod promotions;

/// Recharges behind a restore, with a simulated channel.
#[cfg(feature = "crash")]
mod recharge_recover;
/// The till: orders and returns at their channels, from their rows, against the simulator.
mod till;

/// The chain of the tests: the node, its contracts, and the endpoint before it.
mod chain;

/// The PostgreSQL that `serve --dev` runs for itself.
mod embedded;

/// The rows of transactions: their store, a caller's decision in SQL, grants, reads, the audit.
mod transactions_store;

/// The door of the transaction manager: its nodes over HTTP.
mod txm_door;

/// The lease of a signer: one owner, fenced, also if a process is paused.
mod txm_lease;

/// The store of the transaction manager: requests, nonces, steps, reads, plans.
mod txm_store;

/// Nodes of the transaction manager over a real chain: owners, sends, blocks, nonces.
mod txm_real;

/// PostgreSQL's own rules for transfers, compared with the code and the specification.
mod schema;

/// The listener of payment channels, with the simulator as the server's child.
mod callbacks;

/// Payment channels: their adapters, and the simulator that stands for them.
mod channels;

/// The acceptance ids of the specification.
mod acceptance;

/// The findings of a hostile review, scenario by scenario.
mod findings;

/// The repository's own text, for the two modules below.
mod source;

/// Plain language in comments, messages and pages.
mod language;

/// The order of the house: arrows, seams, and tables that must agree.
mod tidy;

/// The tables of operations and of claims: read everywhere, written once.
mod tables;
