//! Frames: FIX's Simple Open Framing Header before each message.
//!
//! Source: FIX Simple Open Framing Header 1.0: both fields are big endian.

use tokio_util::codec::LengthDelimitedCodec;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The largest frame with its header, bytes. A longer one ends the session.
pub const FRAME_BYTES_MAX: usize = 1_024;

/// SBE 1.0, little endian.
pub const ENCODING_SBE_LITTLE_ENDIAN: u16 = 0xEB50;

/// The length field, bytes.
const LENGTH_BYTES: usize = size_of::<U32>();

/// The header of a frame.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    /// Bytes of the frame with this header.
    pub(crate) length: U32,
    pub(crate) encoding: U16,
}

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = size_of::<FrameHeader>();

/// Cuts a byte stream into frames. Each one begins with its encoding type, behind the length.
///
/// Its errors are frames that are longer than [`FRAME_BYTES_MAX`] or shorter than their length.
pub fn cutter() -> LengthDelimitedCodec {
    let length = isize::try_from(LENGTH_BYTES).expect("small");
    LengthDelimitedCodec::builder()
        .length_field_length(LENGTH_BYTES)
        .length_adjustment(-length)
        .max_frame_length(FRAME_BYTES_MAX)
        .new_codec()
}
