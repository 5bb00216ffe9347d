//! Sessions of venues: their messages against the schema, and the real server's sockets.

use std::path::Path;

/// Has a venue send one command, and hear its answer.
pub(crate) fn send_one_command(socket: &Path, venue: u32) {
    let (mut session, _) = client::Venue::opened(socket, venue, 0);
    session.reserve(1, 1, client::USDT, 1);
    session.answer(1);
}

/// The bounds of a session: window, room, ring, output, and its token.
mod bounds;

/// A venue, as the tests need it.
pub(crate) mod client;

/// The routes and commands of operators for venues and their holds.
mod operators;

/// A cut of the log under venues, and its recovery.
mod restored;

/// The messages, against a reader of the schema that shares no code with ours.
mod schema;

/// The real server's sockets, used as a venue uses them.
mod sessions;
