//! A posting by name: the command of a service, and its record in the log (kind 12).
//!
//! A service names its commands by transaction, operation and round. A RESERVE of round n carries
//! the legs of all rounds up to n, and sets apart the amounts that they lack. A SETTLE books them,
//! a RELEASE gives all back, and a POST books its legs at once.
//!
//! The record is that of [`crate::posted`], without its flags 1 and 4:
//!
//! | bytes | field |
//! |---|---|
//! | 16 | name: the transaction, a ULID |
//! | 8 | order number of the transaction |
//! | 8 | reference: the user of a user's transaction; 0 for a service's own |
//! | 8 | state: the lower half of the digest before this record |
//! | 2 | code, 0 = success |
//! | 1 | op, 6 = RESERVE, 7 = SETTLE, 8 = RELEASE, 9 = POST |
//! | 1 | round, 1 to 8 |
//! | 1 | number of legs, 0 to 16; a RELEASE has none |
//! | 1 | flags, 0: by name; 8: a leg comes from outside or goes there |
//! | 1 | length of tx_id, 1 to 64 |
//! | 1 | the failing leg from 0; 0 for a success |
//! | 32 each | the legs |
//! | 1 to 64 | tx_id |
//!
//! An older version recorded a refused leg from or to the outside without flag 8. Such a record is
//! refused again. A record with the flag is one that older versions cannot read, and say so.

use domain::code::Code;
use domain::posting::{LEGS_MAX, Leg, Posting};
use domain::transfer::op::HoldStep;
use domain::transfer::{Decision, Op, ReqId};
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::{FromBytes, IntoBytes};

use crate::crossed::crosses;
use crate::posted::{HEAD_BYTES, HeadBytes, LEG_BYTES, LegBytes, writable};
use crate::record::{Error, Kind, PAYLOAD_BYTES_MAX, decision_number, decision_of};
use crate::text::Text;

/// In the flags: a leg comes from outside or goes there.
const OUTSIDE: u8 = 8;
/// The most rounds of a transaction.
pub const ROUND_MAX: u8 = 8;
/// The most bytes of a tx_id.
pub const TX_ID_BYTES_MAX: usize = 64;

/// A service's own name of a transaction, 1..=64 bytes of `[A-Za-z0-9_.:-]`.
pub type TxId = Text<TX_ID_BYTES_MAX>;

const _: () = assert!(HEAD_BYTES + LEGS_MAX * LEG_BYTES + TX_ID_BYTES_MAX <= PAYLOAD_BYTES_MAX);

/// The body of a command of a service. The operation stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPosting {
    /// The transaction.
    pub transaction: ReqId,
    /// The transaction's position in the order of accepts. It is the same in all its commands.
    pub order_number: u64,
    /// 1..=8. A SETTLE and a RELEASE end all rounds: theirs is noted and tells nothing apart.
    pub round: u8,
    /// The service's own name of the transaction.
    pub tx_id: TxId,
    /// The user of a user's transaction; 0 for a service's own. It is kept and not interpreted.
    pub user: u64,
    /// The legs, in order: of all accepted rounds up to this one. A RELEASE has none.
    pub legs: Posting,
}

/// The decision of a posting by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedAnswer {
    /// The decision.
    pub decision: Decision,
    /// The failing leg from 0; 0 for a success.
    pub leg: u8,
    /// The record that holds it.
    pub record: wal::Sequence,
}

/// The decision of a command by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedStep {
    /// Append the command to the log, then apply it.
    Append,
    /// It was decided before.
    Known(NamedAnswer),
    /// A repeat with other legs, or a command that contradicts an earlier one, with the reason.
    /// Nothing changes.
    Violation(&'static str),
    /// No place is left, with the configuration key of the bound. Nothing changes; the caller may
    /// retry.
    Full(&'static str),
    /// It is below the watermark, and may have been decided and evicted. Nothing changes.
    Forgotten,
}

/// A bug that a test may plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedBug {
    /// A RESERVE does not look for a RELEASE.
    ReserveBehindRelease,
    /// A RELEASE does not look for a SETTLE.
    ReleaseBehindSettle,
    /// An arriving amount is available before the SETTLE.
    ArrivingIsAvailable,
    /// A RESERVE keeps no places.
    PlaceNotKept,
    /// A SETTLE leaves its last place out.
    HalfAPosting,
    /// A SETTLE does not count the money that leaves Spot.
    OutsideForgotten,
}

/// A posting by name. The service fills the upper fields, UBSCore the lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The transaction, a ULID, not 0.
    pub transaction: u128,
    /// See [`NamedPosting::order_number`].
    pub order_number: u64,
    /// See [`NamedPosting::round`].
    pub round: u8,
    /// See [`NamedPosting::tx_id`].
    pub tx_id: TxId,
    /// See [`NamedPosting::user`].
    pub reference: u64,
    /// RESERVE, SETTLE, RELEASE or POST.
    pub op: Op,
    /// The legs; none if a record cannot hold them.
    pub legs: Posting,
    /// Legs from and to the outside are judged. False in a record of an older version, which
    /// refused them.
    pub outside: bool,
    /// The lower half of the digest before this record.
    pub state: u64,
    /// The decision.
    pub decision: Decision,
    /// The failing leg from 0; 0 for a success.
    pub leg: u8,
}

impl Named {
    /// An empty command: the content of a free cell.
    pub fn empty() -> Named {
        Named {
            transaction: 0,
            order_number: 0,
            round: 0,
            tx_id: Text::EMPTY,
            reference: 0,
            op: Op::Post,
            legs: Posting::new(),
            outside: false,
            state: 0,
            decision: Decision::Success,
            leg: 0,
        }
    }

    /// Replaces the command in this cell. Only the legs used are written.
    pub fn fill(&mut self, op: Op, posting: &NamedPosting) {
        let NamedPosting { transaction, order_number, round, tx_id, user, ref legs } = *posting;
        (self.transaction, self.op, self.round) = (transaction.number(), op, round);
        (self.order_number, self.tx_id, self.reference) = (order_number, tx_id, user);
        (self.state, self.decision, self.leg) = (0, Decision::Success, 0);
        self.legs.clear();
        self.legs.try_extend_from_slice(writable(legs)).expect("a posting has as many places");
        self.outside = crosses(&self.legs);
    }

    /// A command with this body.
    pub fn new(op: Op, posting: &NamedPosting) -> Named {
        let mut named = Named::empty();
        named.fill(op, posting);
        named
    }

    /// Whether it ends a transaction: all rounds have one SETTLE or one RELEASE.
    pub(crate) fn ends(&self) -> bool {
        ends(self.op)
    }

    fn gives_back(&self) -> bool {
        self.op.step() == Some(HoldStep::GiveBack)
    }

    /// The round that is a part of its key, 0 for an end.
    pub(crate) fn key_round(&self) -> u8 {
        if self.ends() { 0 } else { self.round }
    }

    /// The reason for which it is never decided: its caller has a bug.
    pub(crate) fn objection(&self) -> Option<&'static str> {
        match () {
            () if !is_transaction(self.transaction) => Some("the transaction's name is no ULID"),
            () if !self.op.is_posting() => Some("UBSCore decides no such operation by round"),
            () if !(1..=ROUND_MAX).contains(&self.round) => Some("a round is 1 to 8"),
            () if !is_tx_id(self.tx_id.as_bytes()) => Some("not the form of a tx_id"),
            () if self.gives_back() && !self.legs.is_empty() => Some("a release has no legs"),
            () => None,
        }
    }

    /// The code of a refusal.
    pub fn code(&self) -> Option<Code> {
        match self.decision {
            Decision::Success => None,
            Decision::Refused(code) => Some(code),
        }
    }

    /// XXH3-128 of the legs: a repeat has the same one.
    pub(crate) fn hash(&self) -> u128 {
        let mut bytes = [0; LEGS_MAX * LEG_BYTES];
        let length = write_legs(&self.legs, &mut bytes);
        xxh3_128(&bytes[..length])
    }

    /// Writes the payload into `buffer`. Returns its length in bytes.
    pub(crate) fn encode(&self, buffer: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        let head = HeadBytes {
            name: self.transaction.into(),
            acknowledged: self.order_number.into(),
            reference: self.reference.into(),
            state: self.state.into(),
            code: decision_number(self.decision).into(),
            op: self.op.number(),
            round: self.round,
            legs: u8::try_from(self.legs.len()).expect("at most 16"),
            flags: if self.outside { OUTSIDE } else { 0 },
            tx_id_length: self.tx_id.length(),
            leg: self.leg,
        };
        let (bytes, rest) = buffer.split_at_mut(HEAD_BYTES);
        bytes.copy_from_slice(head.as_bytes());
        let legs = write_legs(&self.legs, rest);
        let tx_id = self.tx_id.as_bytes();
        rest[legs..legs + tx_id.len()].copy_from_slice(tx_id);
        HEAD_BYTES + legs + tx_id.len()
    }

    /// Reads the payload of a record of [`Kind::Posting`]. One posting has one form in bytes.
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it.
    pub(crate) fn decode(payload: &[u8]) -> Result<Named, Error> {
        let malformed = || Error::Payload { kind: Kind::Posting, bytes: payload.len() };
        let field = |field, number: u64| Error::Field { field, number };
        let (head, rest) = HeadBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
        let (legs, length) = (usize::from(head.legs), usize::from(head.tx_id_length));
        if legs > LEGS_MAX || rest.len() != legs * LEG_BYTES + length {
            return Err(malformed());
        }
        if head.flags & !OUTSIDE != 0 {
            return Err(field("flags", head.flags.into()));
        }
        let op = Op::from_number(head.op).filter(|op| op.is_posting());
        let op = op.ok_or_else(|| field("op", head.op.into()))?;
        let decision = decision_of(head.code.get())?;
        if ends(op) && decision != Decision::Success {
            return Err(field("code", head.code.get().into()));
        }
        let (legs, tx_id) = rest.split_at(legs * LEG_BYTES);
        let tx_id = Text::from_bytes(tx_id).ok_or_else(malformed)?;
        let mut named = Named {
            transaction: head.name.get(),
            order_number: head.acknowledged.get(),
            round: head.round,
            tx_id,
            reference: head.reference.get(),
            op,
            legs: Posting::new(),
            outside: head.flags & OUTSIDE != 0,
            state: head.state.get(),
            decision,
            leg: head.leg,
        };
        for bytes in legs.chunks_exact(LEG_BYTES) {
            let bytes = LegBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
            match bytes.read()? {
                (leg, false) => named.legs.push(leg),
                (_, true) => return Err(field("kind of place", 0x80)),
            }
        }
        if named.outside && !crosses(&named.legs) {
            return Err(field("flags", head.flags.into()));
        }
        match named.objection() {
            None => Ok(named),
            Some(_) => Err(field("name of a posting", head.round.into())),
        }
    }
}

/// Whether the operation is decided once for all rounds.
pub(crate) fn ends(op: Op) -> bool {
    matches!(op.step(), Some(HoldStep::Book | HoldStep::GiveBack))
}

/// Whether a number can be a transaction's name. Its upper bit is that of the years after 6429: the
/// table of holds tells freezes by it.
pub(crate) fn is_transaction(number: u128) -> bool {
    number != 0 && number >> 127 == 0
}

fn is_tx_id(bytes: &[u8]) -> bool {
    let sane = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(byte);
    (1..=TX_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(sane)
}

/// Returns the number of bytes written.
fn write_legs(legs: &[Leg], buffer: &mut [u8]) -> usize {
    for (bytes, leg) in buffer.chunks_exact_mut(LEG_BYTES).zip(legs) {
        bytes.copy_from_slice(LegBytes::new(leg, false).as_bytes());
    }
    legs.len() * LEG_BYTES
}

#[cfg(test)]
mod tests {
    use domain::posting::Place;

    use super::*;

    fn reserve() -> Named {
        let (from, to) = (Place::Available(1001), Place::Available(1002));
        let legs = [Leg { from, to, asset: 3, amount: 258 }].into_iter().collect();
        let transaction = ReqId::new(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10).expect("not 0");
        let tx_id = Text::new("pay:7").expect("short");
        let posting = NamedPosting { transaction, order_number: 7, round: 2, tx_id, user: 5, legs };
        let mut named = Named::new(Op::Reserve, &posting);
        (named.decision, named.leg) = (Decision::Refused(Code::InsufficientBalance), 1);
        named.state = 0x0807_0605_0403_0201;
        named
    }

    fn encoded(named: &Named) -> Vec<u8> {
        let mut buffer = [0; PAYLOAD_BYTES_MAX];
        let length = named.encode(&mut buffer);
        buffer[..length].to_vec()
    }

    #[test]
    fn the_bytes_of_a_posting_by_name_stay_what_they_are() {
        let mut want = vec![16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1];
        want.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        want.extend([24, 0, 6, 2, 1, 0, 5, 1]);
        want.extend([1001_u64, 1002, 258].map(u64::to_le_bytes).concat());
        want.extend([3, 0, 0, 0, 1, 1, 0, 0]);
        want.extend(b"pay:7");
        assert_eq!(encoded(&reserve()), want);
        assert_eq!(Named::decode(&want), Ok(reserve()));
        let release = Named {
            op: Op::Release,
            legs: Posting::new(),
            decision: Decision::Success,
            leg: 0,
            ..reserve()
        };
        assert_eq!(encoded(&release)[40..], [&[0, 0, 8, 2, 0, 0, 5, 0][..], b"pay:7"].concat());
        assert_eq!(Named::decode(&encoded(&release)), Ok(release));
    }

    /// Goal: an older version cannot read a leg from or to the outside that was decided, and this
    /// one tells its own records from those that the older one refused.
    #[test]
    fn a_leg_from_outside_has_a_flag() {
        let mut named = reserve();
        named.legs[0].from = Place::Outside;
        let older = encoded(&named);
        assert_eq!((older[45], Named::decode(&older)), (0, Ok(named.clone())));
        named.outside = true;
        let own = encoded(&named);
        assert_eq!((own[45], Named::decode(&own)), (8, Ok(named.clone())));
        assert_eq!([&own[..45], &own[46..]], [&older[..45], &older[46..]]);
        let (transaction, order_number) = (ReqId::new(7).expect("not 0"), 7);
        let (tx_id, legs) = (named.tx_id, named.legs.clone());
        let posting = NamedPosting { transaction, order_number, round: 2, tx_id, user: 5, legs };
        assert!(Named::new(Op::Post, &posting).outside, "a new command has it");
        named.fill(Op::Reserve, &NamedPosting { legs: reserve().legs, ..posting });
        assert!(!named.outside);
    }

    /// The hash is a part of the format: facts hold it. A decision does not change it.
    #[test]
    fn the_hash_is_that_of_the_legs() {
        let named = reserve();
        assert_eq!(format!("{:032x}", named.hash()), "5964aeaa14f4eda18eb431de72b41238");
        let other = Named { decision: Decision::Success, round: 3, order_number: 9, ..reserve() };
        assert_eq!(other.hash(), named.hash());
        let mut more = reserve();
        more.legs[0].amount += 1;
        assert_ne!(more.hash(), named.hash());
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let good = encoded(&reserve());
        let field = |field, number| Err(Error::Field { field, number });
        for (at, byte, want) in [
            (15, 0x81, field("name of a posting", 2)),
            (40, 99, field("code", 99)),
            (42, 5, field("op", 5)),
            // An end is never refused.
            (42, 7, field("code", 24)),
            (43, 0, field("name of a posting", 0)),
            (43, 9, field("name of a posting", 9)),
            (44, 2, Err(Error::Payload { kind: Kind::Posting, bytes: good.len() })),
            (45, 2, field("flags", 2)),
            // No leg is from or to the outside.
            (45, 8, field("flags", 8)),
            (46, 4, Err(Error::Payload { kind: Kind::Posting, bytes: good.len() })),
            (76, 0x81, field("kind of place", 0x80)),
            (80, b' ', field("name of a posting", 2)),
            (80, 0xff, Err(Error::Payload { kind: Kind::Posting, bytes: good.len() })),
        ] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(Named::decode(&bytes), want, "byte {at}");
        }
        for bytes in 0..good.len() {
            let malformed = Err(Error::Payload { kind: Kind::Posting, bytes });
            assert_eq!(Named::decode(&good[..bytes]), malformed);
        }
    }
}
