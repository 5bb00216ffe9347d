//! Sessions of venues: their messages against the schema.

/// The messages, against a reader of the schema that shares no code with ours.
mod schema;
