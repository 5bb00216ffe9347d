//! Sessions of venues: their messages against the schema, and the real server's sockets.

/// A venue, as the tests need it.
pub(crate) mod client;

/// The routes and commands of operators for venues and their holds.
mod operators;

/// The messages, against a reader of the schema that shares no code with ours.
mod schema;

/// The real server's sockets, used as a venue uses them.
mod sessions;
