//! The messages of a venue's session, and their frames: both ends of `config/stream.sbe.xml`, which
//! is the contract. This crate has no I/O and no clock.
//!
//! - [`message`]: every message by its template, read in place from a frame and appended to a
//!   buffer.
//! - [`block`]: the fixed fields of each message, as they lie in the bytes.
//! - [`leg`]: the legs of a posting in a message.
//! - [`frame`]: the header before each message, and the cut of a byte stream into messages.

pub mod block;
pub mod frame;
pub mod leg;
pub mod message;
