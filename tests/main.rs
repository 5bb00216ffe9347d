//! The integration tests: the real binary, a real PostgreSQL, the real log, seen from outside.
//!
//! One embedded PostgreSQL serves a whole run; each test has a database and a data directory of its own.

/// The only helpers: a database, a data directory, the binary, an HTTP client, the sums.
mod harness;

/// Transfers as a client sees them: both ways, replayed, in a crowd, while something waits.
mod http;

/// Clients that do as `examples/` show.
mod examples;

/// A user's own transfers: listed, filtered, told in pages, and waited for.
mod list;

/// The API against its own description, as an outside tool reads it.
mod openapi;

/// Every code that a client can be refused with, and which one comes first.
mod refusals;

/// What one user may ask for in a second and in a day.
mod limits;

/// The operators' routes: external money, accounts and assets.
mod admin;

/// The keys of tokens: kinds, names, and their change while requests flow.
mod keys;

/// The operators' console in a real browser.
mod browser;

/// TLS on both listeners, and what is spoken to them in another way.
mod tls;

/// HALT: nothing new begins, nothing moves, and all of it goes on after a resume.
mod halt;

/// Pauses: what is refused from their answer on, and what goes on.
mod pauses;

/// What needs two operators: asked for, approved once, rejected, expired.
mod approvals;

/// What a console reads: who asks, one user's accounts, transfers by whatever is known of them.
mod console;

/// Transfers that do not end: found, tried at once, and ended by an operator.
mod operator;

/// What becomes of transfers, told to their users as it happens.
mod events;

/// The same told to an endpoint, signed and in order.
mod webhooks;

/// Each alert under its condition: log event, metric, webhook.
mod alerts;

/// What an operator watches: metrics, rules, dashboard, and the lines of a log.
mod watch;

/// Everything that can be wrong with what comes in.
mod bad_input;

/// Targets that refuse: the source gets its money back, both ways.
mod refunds;

/// Kills, restarts and lost connections.
mod crash;

/// The server and its PostgreSQL killed under load, again and again.
mod soak;

/// Deaths at every point under every answer of a participant.
#[cfg(feature = "crash")]
mod answers;

/// The load generator.
mod load;

/// Clients that mean harm.
mod hostile;

/// Power cuts: what was synced, and whatever else chance lets survive.
#[cfg(feature = "crash")]
mod power;

/// A disk that refuses, writes half, is slow, or fails where it must not.
#[cfg(feature = "crash")]
mod disk;

/// PostgreSQL killed, frozen, full, cut off in the worst moment, or promoted too early.
mod faults;

/// Whole runs from a seed, in virtual time: crashes, lost answers, late ones, and a judge.
mod simulation;

/// Snapshots, and a log that does not grow for ever.
mod snapshot;

/// Everything that can have happened to a log or a snapshot: what is said of it, and what a start does.
mod matrix;

/// What may be forgotten, when, and what is added up of it.
mod watermark;

/// One log, one database, one process: what is refused, and what is fenced.
mod ownership;

/// The audit: what is changed behind the service's back.
mod audit;

/// What the log brings back of a database that has lost something.
mod repair;

/// Files of earlier versions, kept for ever, and of later ones, refused by name.
mod golden;

/// What the doctor says of a machine, a PostgreSQL and a configuration.
mod doctor;

/// One user's account statement across both stores.
mod statement;

/// A log that is given up from a record on, and what PostgreSQL brings back of it.
mod walrepair;

/// Both stores as they stand together, taken while they work, and brought back elsewhere.
mod backup;

/// The operators' runbook, command by command.
mod runbook;

/// What the fuzz targets have reached, once more.
mod fuzz;

/// What a release consists of beside the binary: unit, image, completions, manual pages, changelog.
mod packaging;

/// Each layer called directly with what the layer above it would have refused.
mod layers;

/// The PostgreSQL that `serve --dev` runs for itself.
mod embedded;

/// PostgreSQL's own word on transfers, held against the code and the specification.
mod schema;

/// The acceptance ids of the specification.
mod acceptance;

/// What a hostile review found, scenario by scenario.
mod findings;

/// The order of the house: arrows, seams, and tables that must agree.
mod tidy;
