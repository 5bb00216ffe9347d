//! Text of bounded length, held in place: a slot of the ring is plain data without pointers.

/// Up to `N` bytes of UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// The empty text.
    pub const EMPTY: Text<N> = Text { length: 0, bytes: [0; N] };

    /// A copy of `text`; `None` if it is longer than `N` bytes.
    pub fn new(text: &str) -> Option<Text<N>> {
        Text::from_bytes(text.as_bytes())
    }

    /// A copy of `text`; `None` if it is longer than `N` bytes or not UTF-8.
    pub(crate) fn from_bytes(text: &[u8]) -> Option<Text<N>> {
        const { assert!(N <= u8::MAX as usize, "the length is one byte") };
        std::str::from_utf8(text).ok()?;
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Text { length: u8::try_from(text.len()).ok()?, bytes })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("checked by new")
    }

    /// The text's bytes, without the unused ones.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The text's length in bytes.
    pub(crate) fn length(&self) -> u8 {
        self.length
    }
}
