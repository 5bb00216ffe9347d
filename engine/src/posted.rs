//! A posting by number: the command of a venue in a slot, and the record of the log (kind 12).
//! An operator's RELEASE of a closed venue's hold is the same record, with a name of its own.
//!
//! | bytes | field |
//! |---|---|
//! | 16 | name: venue << 64 plus number; of an operator a ULID |
//! | 8 | acknowledged: the venue has forgotten answers up to this number; operator: the venue |
//! | 8 | reference of the venue; of an operator 0 |
//! | 8 | state: the lower half of the digest before this record |
//! | 2 | code, 0 = success |
//! | 1 | op, 6 = RESERVE, 7 = SETTLE, 8 = RELEASE, 9 = POST |
//! | 1 | round, 0: by number |
//! | 1 | number of legs, 0 to 16 |
//! | 1 | flags: 1 = by number, 2 = imposed, 4 = by an operator |
//! | 1 | length of tx_id, 0: by number |
//! | 1 | the failing leg from 0; 0 for a success |
//! | 32 each | the legs |
//!
//! | bytes | field of a leg |
//! |---|---|
//! | 8 | from: user or hold |
//! | 8 | to: user or hold |
//! | 8 | amount, smallest units |
//! | 4 | asset |
//! | 1 | kind of from: 0 outside, 1 available, 2 frozen, 3 hold; 128 more: all that was left |
//! | 1 | kind of to |
//! | 2 | purpose of a frozen place |
//!
//! A hold 0 in a RESERVE is the one that the command makes. A posting by name, of a service, is a
//! record of the same kind without flags 1 and 4: see [`crate::named`].

use std::mem::size_of;

use domain::code::Code;
use domain::posting::{ALL, LEGS_MAX, Leg, Place, PlaceKind, Posting};
use domain::transfer::{Decision, Op};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::record::{Error, Kind, PAYLOAD_BYTES_MAX, decision_number, decision_of};
use crate::venue::Command;

const BY_NUMBER: u8 = 1;
const IMPOSED: u8 = 2;
const OPERATOR: u8 = 4;
/// Where the flags stand in a payload.
const FLAGS_AT: usize = 45;
/// In the kind of a leg's `from`: the leg has taken all that was left.
const TOOK_ALL: u8 = 0x80;

/// A posting by number. The venue fills the upper fields, UBSCore the lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The venue.
    pub venue: u32,
    /// The venue's number of this command; 0 for an operator's.
    pub number: u64,
    /// The name of an operator's RELEASE, a ULID; 0 for a command of the venue.
    pub operator: u128,
    /// The venue's own reference.
    pub reference: u64,
    /// RESERVE, SETTLE, RELEASE or POST.
    pub op: Op,
    /// The legs; none if they could not be read. After a decision, [`ALL`] is replaced by the
    /// amount.
    pub legs: Posting,
    /// The venue has forgotten answers up to this number.
    pub acknowledged: u64,
    /// The lower half of the digest before this record.
    pub state: u64,
    /// The decision.
    pub decision: Decision,
    /// The failing leg from 0; 0 for a success.
    pub leg: u8,
    /// Refused for want of a place, and not by the state.
    pub imposed: bool,
    /// A bit for each leg that has taken all that was left.
    pub took_all: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct HeadBytes {
    pub(crate) name: U128,
    /// By name: the order number.
    pub(crate) acknowledged: U64,
    pub(crate) reference: U64,
    pub(crate) state: U64,
    pub(crate) code: U16,
    pub(crate) op: u8,
    pub(crate) round: u8,
    pub(crate) legs: u8,
    pub(crate) flags: u8,
    pub(crate) tx_id_length: u8,
    pub(crate) leg: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct LegBytes {
    from: U64,
    to: U64,
    amount: U64,
    asset: U32,
    from_kind: u8,
    to_kind: u8,
    purpose: U16,
}

pub(crate) const HEAD_BYTES: usize = size_of::<HeadBytes>();
pub(crate) const LEG_BYTES: usize = size_of::<LegBytes>();
const _: () = assert!(HEAD_BYTES == 48 && LEG_BYTES == 32);
const _: () = assert!(std::mem::offset_of!(HeadBytes, flags) == FLAGS_AT);
const _: () = assert!(HEAD_BYTES + LEGS_MAX * LEG_BYTES <= PAYLOAD_BYTES_MAX);
const _: () = assert!(LEGS_MAX <= u16::BITS as usize);

impl Posted {
    /// An empty command: the content of a free slot.
    pub fn empty() -> Posted {
        Posted {
            venue: 0,
            number: 0,
            operator: 0,
            reference: 0,
            op: Op::Post,
            legs: Posting::new(),
            acknowledged: 0,
            state: 0,
            decision: Decision::Success,
            leg: 0,
            imposed: false,
            took_all: 0,
        }
    }

    /// Replaces the command in this slot. Only the legs used are written.
    pub fn fill(&mut self, venue: u32, number: u64, command: &Command) {
        (self.venue, self.number, self.operator) = (venue, number, 0);
        self.legs.clear();
        (self.took_all, self.leg, self.imposed) = (0, 0, false);
        let legs = match command {
            Command::Settle { legs, .. } | Command::Post { legs, .. } => &legs[..],
            // The owner and the asset are those of the hold: the judge fills them in.
            Command::Release { hold, amount, .. } => {
                let (from, to) = (Place::Hold(*hold), Place::Available(0));
                &[Leg { from, to, asset: 0, amount: *amount }]
            }
            Command::Reserve { user, asset, amount, onto, .. } => {
                let (from, to) = (Place::Available(*user), Place::Hold(*onto));
                &[Leg { from, to, asset: *asset, amount: *amount }]
            }
        };
        self.legs.try_extend_from_slice(writable(legs)).expect("a command has as many places");
        (self.op, self.reference) = match command {
            Command::Reserve { reference, .. } => (Op::Reserve, *reference),
            Command::Settle { reference, .. } => (Op::Settle, *reference),
            Command::Release { reference, .. } => (Op::Release, *reference),
            Command::Post { reference, .. } => (Op::Post, *reference),
        };
    }

    /// An operator's RELEASE of all that remains in a hold. `name`: not 0.
    pub(crate) fn release(name: u128, venue: u32, hold: u64) -> Posted {
        let mut posted = Posted::empty();
        posted.fill(venue, 0, &Command::Release { reference: 0, hold, amount: ALL });
        Posted { operator: name, ..posted }
    }

    /// The hold that an operator's RELEASE names.
    pub(crate) fn released(&self) -> Option<u64> {
        match self.legs[..] {
            [Leg { from: Place::Hold(hold), .. }] if self.operator != 0 => Some(hold),
            _ => None,
        }
    }

    /// The code of a refusal.
    pub fn code(&self) -> Option<Code> {
        match self.decision {
            Decision::Success => None,
            Decision::Refused(code) => Some(code),
        }
    }

    /// Takes back what a decision has put into the legs: [`ALL`], and the owner of a release.
    pub(crate) fn take_back(&mut self) {
        for (index, leg) in self.legs.iter_mut().enumerate() {
            if self.took_all & 1 << index != 0 {
                leg.amount = ALL;
            }
            if releases(self.op) {
                (leg.to, leg.asset) = (Place::Available(0), 0);
            }
        }
        self.took_all = 0;
    }

    /// XXH3-64 of the body as the venue has sent it: a repeat has the same one.
    pub(crate) fn hash(&self) -> u64 {
        self.hash_of(&self.legs)
    }

    /// Whether a recorded hash is that of this body. Legs between two frozen places were once left
    /// out of records, and so out of the hash.
    pub(crate) fn has_hash(&self, recorded: u64) -> bool {
        let was_left_out = || self.legs.iter().any(|leg| purposes(leg).is_some());
        recorded == self.hash() || was_left_out() && recorded == self.hash_of(&[])
    }

    fn hash_of(&self, legs: &[Leg]) -> u64 {
        let mut bytes = [0; 9 + LEGS_MAX * LEG_BYTES];
        let (head, rest) = bytes.split_at_mut(9);
        head[0] = self.op.number();
        head[1..].copy_from_slice(&self.reference.to_le_bytes());
        for (index, (bytes, leg)) in rest.chunks_mut(LEG_BYTES).zip(legs).enumerate() {
            let mut leg = *leg;
            if self.took_all & 1 << index != 0 {
                leg.amount = ALL;
            }
            if releases(self.op) {
                (leg.to, leg.asset) = (Place::Available(0), 0);
            }
            bytes.copy_from_slice(LegBytes::new(&leg, false).as_bytes());
        }
        xxh3_64(&bytes[..9 + legs.len() * LEG_BYTES])
    }

    /// Writes the payload into `buffer`. Returns its length in bytes.
    pub(crate) fn encode(&self, buffer: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        let (name, flags, acknowledged) = match self.operator {
            0 => {
                let name = u128::from(self.venue) << 64 | u128::from(self.number);
                (name, BY_NUMBER, self.acknowledged)
            }
            name => (name, OPERATOR, self.venue.into()),
        };
        let head = HeadBytes {
            name: name.into(),
            acknowledged: acknowledged.into(),
            reference: self.reference.into(),
            state: self.state.into(),
            code: decision_number(self.decision).into(),
            op: self.op.number(),
            round: 0,
            legs: u8::try_from(self.legs.len()).expect("at most 16"),
            flags: flags | if self.imposed { IMPOSED } else { 0 },
            tx_id_length: 0,
            leg: self.leg,
        };
        let (bytes, rest) = buffer.split_at_mut(HEAD_BYTES);
        bytes.copy_from_slice(head.as_bytes());
        for (index, (bytes, leg)) in rest.chunks_exact_mut(LEG_BYTES).zip(&self.legs).enumerate() {
            let took_all = self.took_all & 1 << index != 0;
            bytes.copy_from_slice(LegBytes::new(leg, took_all).as_bytes());
        }
        HEAD_BYTES + self.legs.len() * LEG_BYTES
    }

    /// Reads the payload of a record of [`Kind::Posting`]. One posting has one form in bytes.
    ///
    /// # Errors
    /// [`Error`]: this version cannot read it.
    pub(crate) fn decode(payload: &[u8]) -> Result<Posted, Error> {
        let malformed = || Error::Payload { kind: Kind::Posting, bytes: payload.len() };
        let field = |field, number: u64| Error::Field { field, number };
        let (head, rest) = HeadBytes::ref_from_prefix(payload).map_err(|_| malformed())?;
        let legs = usize::from(head.legs);
        if legs > LEGS_MAX || rest.len() != legs * LEG_BYTES {
            return Err(malformed());
        }
        let op = Op::from_number(head.op).filter(|op| op.is_posting());
        let op = op.ok_or_else(|| field("op", head.op.into()))?;
        let by_operator = head.flags == OPERATOR;
        if head.flags & !IMPOSED != BY_NUMBER && !by_operator {
            return Err(field("flags", head.flags.into()));
        }
        if head.round != 0 || head.tx_id_length != 0 {
            return Err(field("round", head.round.into()));
        }
        let decision = decision_of(head.code.get())?;
        let imposed = head.flags & IMPOSED != 0;
        if imposed && decision != Decision::Refused(Code::Overloaded) {
            return Err(field("code", head.code.get().into()));
        }
        let (name, acknowledged) = (head.name.get(), head.acknowledged.get());
        let (venue, number, operator, acknowledged) = match by_operator {
            true if name == 0 || !releases(op) || decision != Decision::Success => {
                return Err(field("op", head.op.into()));
            }
            true => (u32::try_from(acknowledged).map_err(|_| malformed())?, 0, name, 0),
            false => {
                let venue = u32::try_from(name >> 64).map_err(|_| malformed())?;
                let number = u64::try_from(name & u128::from(u64::MAX)).expect("64 bits");
                (venue, number, 0, acknowledged)
            }
        };
        let mut posted = Posted {
            venue,
            number,
            operator,
            reference: head.reference.get(),
            op,
            legs: Posting::new(),
            acknowledged,
            state: head.state.get(),
            decision,
            leg: head.leg,
            imposed,
            took_all: 0,
        };
        for (index, bytes) in rest.chunks_exact(LEG_BYTES).enumerate() {
            let bytes = LegBytes::ref_from_bytes(bytes).map_err(|_| malformed())?;
            let (leg, took_all) = bytes.read()?;
            posted.took_all |= u16::from(took_all) << index;
            posted.legs.push(leg);
        }
        match by_operator && posted.released().is_none() {
            true => Err(field("legs", head.legs.into())),
            false => Ok(posted),
        }
    }
}

/// Whether a payload of [`Kind::Posting`] is one by name, see [`crate::named`].
pub(crate) fn is_by_name(payload: &[u8]) -> bool {
    payload.get(FLAGS_AT).is_some_and(|flags| *flags & (BY_NUMBER | OPERATOR) == 0)
}

/// The legs as a record can hold them. A leg has room for one purpose: a body with a leg between
/// two purposes is refused, and recorded without its legs.
///
/// So such bodies share the hash of no legs, and one of them is taken for a repeat of another. No
/// message of a socket has room for two purposes either, only a venue in this process can send
/// them. All of them have one decision, the refusal INVALID_POSTING. To tell them apart a record
/// would need a new form, which the version before refuses.
pub(crate) fn writable(legs: &[Leg]) -> &[Leg] {
    let has_two = |leg: &Leg| purposes(leg).is_some_and(|[from, to]| from != to);
    if legs.iter().any(has_two) { &[] } else { legs }
}

/// The purposes of a leg between two frozen places.
fn purposes(leg: &Leg) -> Option<[u16; 2]> {
    match (leg.from, leg.to) {
        (Place::Frozen { purpose: from, .. }, Place::Frozen { purpose: to, .. }) => {
            Some([from, to])
        }
        _ => None,
    }
}

/// Whether the owner and the asset of the leg follow from its hold.
fn releases(op: Op) -> bool {
    op.row().pays_owner
}

impl LegBytes {
    pub(crate) fn new(leg: &Leg, took_all: bool) -> LegBytes {
        let number = |place| match place {
            Place::Outside => 0,
            Place::Available(user) | Place::Frozen { user, .. } => user,
            Place::Hold(number) => number,
        };
        // There is at most one: see `writable`.
        let purpose = match (leg.from, leg.to) {
            (Place::Frozen { purpose, .. }, _) | (_, Place::Frozen { purpose, .. }) => purpose,
            _ => 0,
        };
        LegBytes {
            from: number(leg.from).into(),
            to: number(leg.to).into(),
            amount: leg.amount.into(),
            asset: leg.asset.into(),
            from_kind: leg.from.kind() as u8 | if took_all { TOOK_ALL } else { 0 },
            to_kind: leg.to.kind() as u8,
            purpose: purpose.into(),
        }
    }

    /// The leg, and whether it has taken all that was left.
    pub(crate) fn read(&self) -> Result<(Leg, bool), Error> {
        let purpose = self.purpose.get();
        let place = |kind: u8, number: u64| match kind {
            kind if kind == PlaceKind::Outside as u8 && number == 0 => Ok(Place::Outside),
            kind if kind == PlaceKind::Available as u8 => Ok(Place::Available(number)),
            kind if kind == PlaceKind::Frozen as u8 => Ok(Place::Frozen { user: number, purpose }),
            kind if kind == PlaceKind::Hold as u8 => Ok(Place::Hold(number)),
            kind => Err(Error::Field { field: "kind of place", number: kind.into() }),
        };
        let took_all = self.from_kind & TOOK_ALL != 0;
        let from = place(self.from_kind & !TOOK_ALL, self.from.get())?;
        let to = place(self.to_kind, self.to.get())?;
        let frozen = [from, to].map(Place::kind).contains(&PlaceKind::Frozen);
        if purpose != 0 && !frozen {
            return Err(Error::Field { field: "purpose", number: purpose.into() });
        }
        let (asset, amount) = (self.asset.get(), self.amount.get());
        Ok((Leg { from, to, asset, amount }, took_all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VENUE: u32 = 0x0102_0304;

    fn posted(command: &Command) -> Posted {
        let mut posted = Posted::empty();
        posted.fill(VENUE, 9, command);
        (posted.acknowledged, posted.state) = (7, 0x0807_0605_0403_0201);
        posted
    }

    fn encoded(posted: &Posted) -> Vec<u8> {
        let mut buffer = [0; PAYLOAD_BYTES_MAX];
        let length = posted.encode(&mut buffer);
        buffer[..length].to_vec()
    }

    fn reserve() -> Command {
        Command::Reserve { reference: 5, user: 1001, asset: 3, amount: 258, onto: 0 }
    }

    fn settle() -> Command {
        let leg = |from, to, amount| Leg { from, to, asset: 3, amount };
        let legs = [
            leg(Place::Hold(4), Place::Available(1002), 258),
            leg(Place::Hold(4), Place::Available(1001), ALL),
        ];
        Command::Settle { reference: 5, legs: legs.into_iter().collect() }
    }

    /// The 48 bytes before the legs.
    fn head(code: u8, op: u8, legs: u8, flags: u8, leg: u8) -> Vec<u8> {
        let mut want = vec![9, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0];
        want.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        want.extend([code, 0, op, 0, legs, flags, 0, leg]);
        want
    }

    fn leg(from: u64, to: u64, amount: u64, asset: u8, kinds: [u8; 2]) -> Vec<u8> {
        let numbers = [from, to, amount].map(u64::to_le_bytes).concat();
        [numbers, vec![asset, 0, 0, 0, kinds[0], kinds[1], 0, 0]].concat()
    }

    #[test]
    fn the_bytes_of_each_operation_stay_what_they_are() {
        let mut reserve = posted(&reserve());
        let legs = leg(1001, 0, 258, 3, [1, 3]);
        assert_eq!(encoded(&reserve), [head(0, 6, 1, 1, 0), legs.clone()].concat());
        reserve.decision = Decision::Refused(Code::Overloaded);
        reserve.imposed = true;
        assert_eq!(encoded(&reserve), [head(30, 6, 1, 3, 0), legs].concat());

        let mut settle = posted(&settle());
        settle.took_all = 2;
        settle.legs[1].amount = 7;
        let legs = [leg(4, 1002, 258, 3, [3, 1]), leg(4, 1001, 7, 3, [0x83, 1])].concat();
        assert_eq!(encoded(&settle), [head(0, 7, 2, 1, 0), legs].concat());

        let mut release = posted(&Command::Release { reference: 5, hold: 4, amount: 258 });
        (release.decision, release.leg) = (Decision::Refused(Code::HoldNotFound), 0);
        let legs = leg(4, 0, 258, 0, [3, 1]);
        assert_eq!(encoded(&release), [head(33, 8, 1, 1, 0), legs].concat());

        let (from, to) = (Place::Available(1001), Place::Available(1002));
        let legs = [Leg { from, to, asset: 3, amount: 258 }; 2].into_iter().collect();
        let mut post = posted(&Command::Post { reference: 5, legs });
        (post.decision, post.leg) = (Decision::Refused(Code::InsufficientBalance), 1);
        let legs = leg(1001, 1002, 258, 3, [1, 1]).repeat(2);
        assert_eq!(encoded(&post), [head(24, 9, 2, 1, 1), legs].concat());

        for posted in [reserve, settle, release, post] {
            assert_eq!(Posted::decode(&encoded(&posted)), Ok(posted));
        }
    }

    /// The hash is a part of the format: facts hold it. A decision does not change it.
    #[test]
    fn the_hash_of_a_body_is_that_of_the_body_as_sent() {
        let mut decided = posted(&settle());
        let sent = decided.hash();
        assert_eq!(format!("{sent:016x}"), "7fbc14171f18592f");
        decided.took_all = 2;
        decided.legs[1].amount = 7;
        assert_eq!(decided.hash(), sent);
        decided.take_back();
        assert_eq!(decided, posted(&settle()));
        let mut release = posted(&Command::Release { reference: 5, hold: 4, amount: 258 });
        let sent = release.hash();
        (release.legs[0].to, release.legs[0].asset) = (Place::Available(1001), 3);
        assert_eq!(release.hash(), sent);
        let other = Command::Release { reference: 6, hold: 4, amount: 258 };
        assert_ne!(posted(&other).hash(), sent);
    }

    /// Story: a body with a leg between two frozen places was recorded without legs, and another
    /// such body was taken for its repeat.
    #[test]
    fn bodies_between_frozen_places_are_told_apart() {
        let frozen = |user, purpose| Place::Frozen { user, purpose };
        let post = |from, to, amount| {
            let legs = [Leg { from, to, asset: 3, amount }].into_iter().collect();
            posted(&Command::Post { reference: 5, legs })
        };
        let sent = post(frozen(1, 7), frozen(2, 7), 258);
        assert_eq!(Posted::decode(&encoded(&sent)), Ok(sent.clone()));
        let none = posted(&Command::Post { reference: 5, legs: Posting::new() });
        for other in [
            post(frozen(1, 7), frozen(2, 7), 259),
            post(frozen(1, 7), frozen(3, 7), 258),
            post(frozen(1, 8), frozen(2, 8), 258),
            post(frozen(1, 7), Place::Available(2), 258),
            none.clone(),
        ] {
            assert!(!other.has_hash(sent.hash()), "{other:?}");
        }
        // An answer that an earlier version has recorded.
        assert!(sent.has_hash(sent.hash()) && sent.has_hash(none.hash()));
        assert!(!post(frozen(1, 7), Place::Available(2), 258).has_hash(none.hash()));
        // No room for two purposes.
        assert_eq!(post(frozen(1, 7), frozen(2, 8), 258), none);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let good = encoded(&posted(&reserve()));
        let field = |field, number| Err(Error::Field { field, number });
        for (at, byte, want) in [
            (42, 5, field("op", 5)),
            (43, 1, field("round", 1)),
            (45, 0, field("flags", 0)),
            (45, 7, field("flags", 7)),
            // A success is never imposed.
            (45, 3, field("code", 0)),
            (40, 99, field("code", 99)),
            (44, 2, Err(Error::Payload { kind: Kind::Posting, bytes: good.len() })),
            (12, 1, Err(Error::Payload { kind: Kind::Posting, bytes: good.len() })),
            (76, 4, field("kind of place", 4)),
            (77, 0x83, field("kind of place", 0x83)),
            (78, 1, field("purpose", 1)),
        ] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(Posted::decode(&bytes), want, "byte {at}");
        }
        for bytes in 0..good.len() {
            let malformed = Err(Error::Payload { kind: Kind::Posting, bytes });
            assert_eq!(Posted::decode(&good[..bytes]), malformed);
        }
    }
}
