//! Integers in JSON.

use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

/// The largest integer that every reader of JSON represents exactly.
pub(super) const JSON_INTEGER_MAX: u128 = 1 << 53;

/// An integer in JSON: a number up to 2^53, above it a string, since many readers would round it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) struct Integer(u128);

impl Integer {
    /// Whether it is 0.
    pub(in crate::commands) fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<u64> for Integer {
    fn from(value: u64) -> Integer {
        Integer(value.into())
    }
}

impl From<u128> for Integer {
    fn from(value: u128) -> Integer {
        Integer(value)
    }
}

impl Display for Integer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Serialize for Integer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.0) {
            Ok(number) if self.0 <= JSON_INTEGER_MAX => serializer.serialize_u64(number),
            _ => serializer.serialize_str(itoa::Buffer::new().format(self.0)),
        }
    }
}
