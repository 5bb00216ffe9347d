//! The findings of a hostile review, scenario by scenario: each test runs one on the real binary.

/// The flights that were answered, over a kill and a restart.
mod answered;

/// Assets, development money, files and directories.
mod assets;

/// Bounds: places, clocks, limits of a day.
mod bounds;

/// The command line and its printed texts.
mod cli;

/// External operations as records of the log.
mod external;

/// Requests, readiness, logging.
mod http;

/// A lost log, rebuilt from PostgreSQL.
mod lost;

/// The connection to PostgreSQL: timeline, TLS, take-over, the embedded server.
mod pg;
