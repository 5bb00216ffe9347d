//! Recharges: money that comes in through a payment channel. The nouns, the three state machines,
//! and the one table that decides a payment. Nothing here does I/O or reads a clock.
//!
//! ```text
//!   order    INIT --> PAYING --> PAID        payment  HELD --> CREDITED | DISMISSED
//!              |         |                              |
//!              +----+----+--> CLOSED                    +<-> RETURNING --> RETURNED
//! ```
//!
//! Each machine is declared once. PostgreSQL's guards are compared with them.

pub mod act;
pub mod answers;
pub mod bill;
pub mod decide;
pub mod facts;
pub mod movement;
pub mod order;
pub mod payment;
pub mod promotion;
pub mod proof;
pub mod returned;
pub mod terms;

use std::fmt;

use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ulid::Ulid;

use self::returned::ReturnKind;

/// Declares the ids of this room: a ULID, with a prefix in text.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The prefix of its text.
            pub const PREFIX: &'static str = $prefix;

            /// The id with this number; `None` for zero.
            pub fn new(number: u128) -> Option<$name> {
                (number != 0).then_some($name(number))
            }

            /// A new id from the time and 80 random bits.
            pub fn generate(time_ns: u64, random: u128) -> $name {
                $name(Ulid::from_parts(time_ns / 1_000_000, random).0.max(1))
            }

            /// Reads the text form with its prefix; `None` if it is not one. Each id has one text:
            /// a channel repeats it letter by letter.
            pub fn parse(text: &str) -> Option<$name> {
                let id = $name::new(Ulid::from_string(text.strip_prefix($prefix)?).ok()?.0)?;
                (id.to_string() == text).then_some(id)
            }

            /// The number.
            pub fn number(self) -> u128 {
                self.0
            }

            /// The ULID without the prefix, for keys.
            pub fn ulid(self) -> String {
                Ulid(self.0).to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{}{}", $prefix, Ulid(self.0))
            }
        }
    )+};
}

ids! {
    /// An order. Its text is our merchant number at the channel.
    RechargeId = "wrc_";
    /// A payment.
    PaymentId = "wpy_";
    /// A return. Its text is our refund number at the channel.
    ReturnId = "wrf_";
}

impl RechargeId {
    /// The time in it, to the millisecond; `None`: no date.
    pub fn made_at(self) -> Option<Timestamp> {
        Timestamp::from_millisecond(i64::try_from(Ulid(self.0).timestamp_ms()).ok()?).ok()
    }
}

impl PaymentId {
    /// The id of the payment with this key. It is the same behind a restore, and so are the keys of
    /// its movements: no payment is credited twice.
    pub fn of(channel: &str, trade_no: &str) -> PaymentId {
        // No name of a channel has a line feed.
        let text = format!("{channel}\n{trade_no}");
        PaymentId(hash_of(&text))
    }
}

impl ReturnId {
    /// The id of a fact of a channel by the channel's number, and that of an operator's refund by
    /// its idempotency key. It is the same behind a restore, and so are the keys of its movements:
    /// no money is taken, and none is sent, twice.
    pub fn of(payment: PaymentId, kind: ReturnKind, number: &str) -> ReturnId {
        ReturnId(hash_of(&format!("{}\n{}\n{number}", payment.ulid(), kind.number())))
    }
}

/// The first bytes of a hash, not zero.
fn hash_of(text: &str) -> u128 {
    let hash = digest(&SHA256, text.as_bytes());
    let first: [u8; 16] = hash.as_ref()[..16].try_into().expect("a hash of 32 bytes");
    u128::from_be_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a payment has one id for ever. The first value is fixed: rows rest on it.
    #[test]
    fn the_id_of_a_payment_follows_from_its_key() {
        let id = PaymentId::of("wechat", "4200001");
        assert_eq!(format!("{:032x}", id.number()), "a2ea43150bb0b207a10e530c88418892");
        for (channel, trade_no) in
            [("wechat", "4200002"), ("card", "4200001"), ("wechat4", "200001")]
        {
            assert_ne!(PaymentId::of(channel, trade_no), id, "{channel} {trade_no}");
        }
        assert_eq!(PaymentId::parse(&id.to_string()), Some(id));
    }

    /// Goal: a merchant number is ours in one form alone. A foreign number never names an order.
    #[test]
    fn an_id_has_one_text() {
        let id = RechargeId::generate(1_700_000_000_000_000_000, 7);
        let text = id.to_string();
        assert_eq!(RechargeId::parse(&text), Some(id));
        assert_eq!(text, format!("wrc_{}", id.ulid()));
        let (lower, short) = (text.to_lowercase(), &text[..text.len() - 1]);
        let zero = "wrc_00000000000000000000000000";
        for foreign in [&lower, short, zero, "", "wrc_", &format!("wpy_{}", id.ulid())] {
            assert_eq!(RechargeId::parse(foreign), None, "{foreign}");
        }
    }
}
