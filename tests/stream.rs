//! Sessions of venues: their messages against the schema, and the real server's sockets.

/// A venue, as the tests need it.
mod client;

/// The routes and commands of operators for venues and their holds.
mod operators;

/// A cut of the log under venues, and its recovery.
mod restored;

/// The messages, against a reader of the schema that shares no code with ours.
mod schema;

/// The real server's sockets, used as a venue uses them.
mod sessions;
