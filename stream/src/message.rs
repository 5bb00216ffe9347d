//! Every message of a session: one table of template, name, block and group.

use bytes::BytesMut;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::{
    Acknowledge, Answer, Back, Balance, Close, HoldRow, HoldsPart, LegRow, Open, Opened,
    ReadBalance, ReadHolds, Release, Reserve, Set,
};
use crate::frame::{ENCODING_SBE_LITTLE_ENDIAN, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader};

/// The schema's id.
pub const SCHEMA_ID: u16 = 1;
/// The schema's version; any other one is refused.
pub const SCHEMA_VERSION: u16 = 1;

/// Stands before each block.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct MessageHeader {
    block_length: U16,
    template: U16,
    schema: U16,
    version: U16,
}

/// Stands before the rows of a group.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct GroupHeader {
    block_length: U16,
    count: U16,
}

/// The bytes of a frame before its block.
const HEADERS_BYTES: usize = FRAME_HEADER_BYTES + size_of::<MessageHeader>();

/// The most legs of one frame. It is above the most legs of a posting, so that one leg too many
/// gets an answer.
pub const LEGS_MAX: usize = rows_max(size_of::<Set>(), size_of::<LegRow>());
/// The most rows of one Holds.
pub const HOLDS_MAX: usize = rows_max(size_of::<HoldsPart>(), size_of::<HoldRow>());

const fn rows_max(block: usize, row: usize) -> usize {
    (FRAME_BYTES_MAX - HEADERS_BYTES - block - size_of::<GroupHeader>()) / row
}

const _: () = assert!(HEADERS_BYTES + size_of::<Open>() <= FRAME_BYTES_MAX);
const _: () = assert!(size_of::<LegRow>() == 32);

/// A frame that is no message of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Declares [`Message`] from the one table below.
macro_rules! messages {
    ($($(#[$doc:meta])* $template:literal = $name:ident($block:ident $(, $row:ident)?);)+) => {
        /// A message, borrowed from its frame or from the sender's fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message<'a> {
            $($(#[$doc])* $name(&'a $block $(, &'a [$row])?),)+
            /// Nothing to say; shows that the sender is there.
            Alive,
        }

        impl<'a> Message<'a> {
            /// Reads the message of a frame, as the cutter returns it.
            ///
            /// # Errors
            /// [`Malformed`]: another encoding, schema, version or template, or a length that is
            /// not exactly that of the template. No field is judged.
            #[inline]
            pub fn read(frame: &'a [u8]) -> Result<Message<'a>, Malformed> {
                let (template, block_length, rest) = read_headers(frame)?;
                match template {
                    $($template => {
                        let (block, rest) = read_block::<$block>(block_length, rest)?;
                        read_message!(rest, $name, block $(, $row)?)
                    })+
                    ALIVE if block_length == 0 && rest.is_empty() => Ok(Message::Alive),
                    _ => Err(Malformed),
                }
            }

            /// Appends the message as one frame.
            ///
            /// # Panics
            /// More rows than a frame can hold.
            #[inline]
            pub fn append_to(&self, out: &mut BytesMut) {
                match self {
                    $(append_pattern!(block rows $name $($row)?) => append_message!(
                        out, $template, block, rows $(, $row)?
                    ),)+
                    Message::Alive => append(out, ALIVE, &[], None),
                }
            }
        }
    };
}

/// The end of a read: a message without a group ends with its block.
macro_rules! read_message {
    ($rest:ident, $name:ident, $block:ident) => {
        if $rest.is_empty() { Ok(Message::$name($block)) } else { Err(Malformed) }
    };
    ($rest:ident, $name:ident, $block:ident, $row:ident) => {
        Ok(Message::$name($block, read_rows::<$row>($rest)?))
    };
}

macro_rules! append_pattern {
    ($block:ident $rows:ident $name:ident) => {
        Message::$name($block)
    };
    ($block:ident $rows:ident $name:ident $row:ident) => {
        Message::$name($block, $rows)
    };
}

macro_rules! append_message {
    ($out:ident, $template:literal, $block:ident, $rows:ident) => {
        append($out, $template, $block.as_bytes(), None)
    };
    ($out:ident, $template:literal, $block:ident, $rows:ident, $row:ident) => {
        append($out, $template, $block.as_bytes(), Some(Rows::of($rows)))
    };
}

messages! {
    /// Venue: the first message.
    1 = Open(Open);
    /// The session begins.
    2 = Opened(Opened);
    /// Venue: sets money apart.
    3 = Reserve(Reserve);
    /// Venue: moves money out of its holds.
    4 = Settle(Set, LegRow);
    /// Venue: gives a hold back.
    5 = Release(Release);
    /// Venue: moves available and frozen money.
    6 = Post(Set, LegRow);
    /// Venue: answers that need not be kept.
    7 = Acknowledge(Acknowledge);
    /// The decision on one command.
    8 = Answer(Answer);
    /// A number that was not decided.
    9 = Back(Back);
    /// Venue: reads its holds.
    10 = ReadHolds(ReadHolds);
    /// The next holds.
    11 = Holds(HoldsPart, HoldRow);
    /// Venue: reads one balance.
    12 = ReadBalance(ReadBalance);
    /// One balance.
    13 = Balance(Balance);
    /// The last message.
    15 = Close(Close);
}

/// The template without a block.
const ALIVE: u16 = 14;

/// Returns template, length of the block, and the bytes behind both headers.
#[inline]
fn read_headers(frame: &[u8]) -> Result<(u16, usize, &[u8]), Malformed> {
    let (encoding, rest) = frame.split_first_chunk().ok_or(Malformed)?;
    if u16::from_be_bytes(*encoding) != ENCODING_SBE_LITTLE_ENDIAN {
        return Err(Malformed);
    }
    let (header, rest) = MessageHeader::ref_from_prefix(rest).map_err(|_| Malformed)?;
    if header.schema.get() != SCHEMA_ID || header.version.get() != SCHEMA_VERSION {
        return Err(Malformed);
    }
    Ok((header.template.get(), usize::from(header.block_length.get()), rest))
}

#[inline]
fn read_block<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    length: usize,
    bytes: &[u8],
) -> Result<(&T, &[u8]), Malformed> {
    if length != size_of::<T>() {
        return Err(Malformed);
    }
    T::ref_from_prefix(bytes).map_err(|_| Malformed)
}

#[inline]
fn read_rows<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
) -> Result<&[T], Malformed> {
    let (header, rest) = GroupHeader::ref_from_prefix(bytes).map_err(|_| Malformed)?;
    if usize::from(header.block_length.get()) != size_of::<T>() {
        return Err(Malformed);
    }
    let count = usize::from(header.count.get());
    <[T]>::ref_from_bytes_with_elems(rest, count).map_err(|_| Malformed)
}

/// The rows of a group as bytes.
struct Rows<'a> {
    row_bytes: usize,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Rows<'a> {
    fn of<T: IntoBytes + Immutable>(rows: &'a [T]) -> Rows<'a> {
        Rows { row_bytes: size_of::<T>(), count: rows.len(), bytes: rows.as_bytes() }
    }
}

#[inline]
fn append(out: &mut BytesMut, template: u16, block: &[u8], rows: Option<Rows<'_>>) {
    let group_bytes = rows.as_ref().map_or(0, |rows| size_of::<GroupHeader>() + rows.bytes.len());
    let length = HEADERS_BYTES + block.len() + group_bytes;
    assert!(length <= FRAME_BYTES_MAX, "template {template} in {length} bytes");
    let short = |number: usize| U16::new(u16::try_from(number).expect("within a frame"));
    let frame = FrameHeader {
        length: u32::try_from(length).expect("within a frame").into(),
        encoding: ENCODING_SBE_LITTLE_ENDIAN.into(),
    };
    let header = MessageHeader {
        block_length: short(block.len()),
        template: template.into(),
        schema: SCHEMA_ID.into(),
        version: SCHEMA_VERSION.into(),
    };
    out.reserve(length);
    out.extend_from_slice(frame.as_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(block);
    if let Some(rows) = rows {
        let group = GroupHeader { block_length: short(rows.row_bytes), count: short(rows.count) };
        out.extend_from_slice(group.as_bytes());
        out.extend_from_slice(rows.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::cutter;
    use proptest::prelude::*;
    use tokio_util::codec::Decoder;

    /// The frames of a byte stream, each as the cutter returns it, and whether all were sound.
    fn cut(bytes: &[u8]) -> (Vec<BytesMut>, bool) {
        let (mut buffer, mut cutter, mut frames) = (BytesMut::from(bytes), cutter(), Vec::new());
        loop {
            match cutter.decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, buffer.is_empty()),
                Err(_) => return (frames, false),
            }
        }
    }

    proptest! {
        /// A readable message is written again as the same bytes: no message has two spellings.
        #[test]
        fn a_message_has_one_spelling(
            template in 0_u16..17,
            version in 1_u16..3,
            cut_short in 0_usize..2,
            count in 0_usize..6,
            bytes in proptest::collection::vec(any::<u8>(), 1_000),
        ) {
            let blocks = [0, 920, 56, 44, 16, 32, 16, 8, 19, 13, 8, 9, 12, 40, 0, 1, 1];
            let row = [(4, 32), (6, 32), (11, 44)].into_iter().find(|row| row.0 == template);
            let block = blocks[usize::from(template)];
            let mut frame = Vec::from(ENCODING_SBE_LITTLE_ENDIAN.to_be_bytes());
            for number in [block, template, SCHEMA_ID, version] {
                frame.extend(number.to_le_bytes());
            }
            frame.extend(&bytes[..usize::from(block)]);
            if let Some((_, row)) = row {
                frame.extend(u16::to_le_bytes(row));
                frame.extend(u16::try_from(count).expect("few").to_le_bytes());
                frame.extend(&bytes[..usize::from(row) * count]);
            }
            frame.truncate(frame.len() - cut_short);
            let sound = (1..16).contains(&template) && version == SCHEMA_VERSION && cut_short == 0;
            prop_assert_eq!(Message::read(&frame).is_ok(), sound);
            if let Ok(message) = Message::read(&frame) {
                let mut written = BytesMut::new();
                message.append_to(&mut written);
                prop_assert_eq!(cut(&written), (vec![BytesMut::from(&frame[..])], true));
            }
        }

        #[test]
        fn any_bytes_are_cut_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2_100)) {
            let (frames, _) = cut(&bytes);
            frames.iter().for_each(|frame| assert!(Message::read(frame).is_err() || frame.len() >= 10));
        }
    }

    #[test]
    fn a_frame_of_a_wrong_length_is_refused() {
        let longest = [[0, 0, 4, 0].as_slice(), &[7; 1_020]].concat();
        assert_eq!(cut(&longest), (vec![BytesMut::from(&longest[4..])], true));
        for odd in [[0, 0, 4, 1], [0, 0, 0, 3], [0xff; 4]] {
            assert_eq!(cut(&[&odd, longest.as_slice()].concat()), (vec![], false), "{odd:?}");
        }
        assert_eq!(cut(&[0, 0, 0, 4]), (vec![BytesMut::new()], true));
        assert_eq!(Message::read(&[]), Err(Malformed));
    }

    #[test]
    fn one_leg_too_many_fits_in_a_frame() {
        let rows = [LegRow::read_from_bytes(&[9; 32]).expect("32 bytes"); LEGS_MAX];
        let mut out = BytesMut::new();
        Message::Settle(&Set { number: 1.into(), reference: 2.into() }, &rows).append_to(&mut out);
        assert_eq!((LEGS_MAX, HOLDS_MAX, out.len()), (30, 22, 994));
    }
}
