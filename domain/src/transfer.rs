//! A transfer: the intent, the state, and the one table of its transitions. Operations are in
//! [`op`], the claims of each state in [`claims`].
//!
//! ```text
//!   INIT --> SOURCE_PENDING --> SOURCE_DONE --> TARGET_PENDING --> COMMITTED
//!                  |                                  |
//!                  v                                  v
//!               FAILED                          COMPENSATING --> ROLLED_BACK
//! ```
//!
//! A participant's answer moves a transfer only when it is a recorded [`Decision`]. Any other
//! answer is an unknown outcome: no [`Event`], and nothing moves.

pub mod claims;
pub mod op;

use std::fmt;

use rust_fsm::{StateMachineImpl, state_machine};
use ulid::Ulid;

use crate::account::UserId;
use crate::amount::Amount;
use crate::asset::AssetId;
use crate::code::Code;

pub use self::claims::{Claim, Money};
pub use self::op::Op;

/// The most bytes a client's idempotency key has.
pub const CID_BYTES_MAX: usize = 64;

/// The name of a transfer: a ULID made by the server, never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReqId(u128);

impl fmt::Debug for ReqId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl ReqId {
    /// The transfer with this number, `None` for zero.
    #[inline]
    pub fn new(number: u128) -> Option<ReqId> {
        (number != 0).then_some(ReqId(number))
    }

    /// A new name from the time and 80 random bits.
    pub fn generate(time_ns: u64, random: u128) -> ReqId {
        ReqId(Ulid::from_parts(time_ns / 1_000_000, random).0.max(1))
    }

    /// The name in its text form, `None` when it is not one.
    pub fn parse(text: &str) -> Option<ReqId> {
        Ulid::from_string(text).ok().and_then(|ulid| ReqId::new(ulid.0))
    }

    /// The number.
    pub fn number(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ReqId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ulid(self.0).fmt(out)
    }
}

/// A client's idempotency key, 1..=[`CID_BYTES_MAX`] bytes of `[A-Za-z0-9_.:-]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cid(String);

impl Cid {
    /// The key with this text, `None` when it is not one.
    pub fn new(text: &str) -> Option<Cid> {
        let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
        ((1..=CID_BYTES_MAX).contains(&text.len()) && text.bytes().all(sane))
            .then(|| Cid(text.to_owned()))
    }

    /// The key of an external operation with this text: a client's, or one of this program's own,
    /// which has a `/`. No client's key has one.
    pub fn of_operation(text: &str) -> Option<Cid> {
        let plain = text.replace('/', ":");
        Cid::new(&plain).map(|_| Cid(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which way the money goes. The number is `direction` in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Out of PostgreSQL into UBSCore.
    FundingToSpot = 1,
    /// Out of UBSCore into PostgreSQL.
    SpotToFunding = 2,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::FundingToSpot, Direction::SpotToFunding];

    /// The direction with this number.
    pub fn from_number(number: u8) -> Option<Direction> {
        match number {
            1 => Some(Direction::FundingToSpot),
            2 => Some(Direction::SpotToFunding),
            _ => None,
        }
    }

    /// The participant that pays.
    pub const fn source(self) -> Participant {
        match self {
            Direction::FundingToSpot => Participant::Funding,
            Direction::SpotToFunding => Participant::Spot,
        }
    }

    /// The participant that is paid.
    pub const fn target(self) -> Participant {
        match self {
            Direction::FundingToSpot => Participant::Spot,
            Direction::SpotToFunding => Participant::Funding,
        }
    }

    /// Whether Spot decides this operation of a transfer. Funding decides the others.
    pub fn is_on_spot(self, op: Op) -> bool {
        op.participant(self) == Participant::Spot
    }

    /// The names of both accounts on the wire: from, to.
    pub fn accounts(self) -> (&'static str, &'static str) {
        (self.source().account(), self.target().account())
    }

    /// The direction with this name on the wire.
    pub fn from_wire_name(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|direction| direction.wire_name() == name)
    }

    /// The name on the wire.
    pub fn wire_name(self) -> &'static str {
        match self {
            Direction::FundingToSpot => "FUNDING_TO_SPOT",
            Direction::SpotToFunding => "SPOT_TO_FUNDING",
        }
    }

    /// For logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Direction::FundingToSpot => "funding_to_spot",
            Direction::SpotToFunding => "spot_to_funding",
        }
    }
}

/// One of the two stores that hold money. The number is `source_type` in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Participant {
    /// PostgreSQL.
    Funding = 1,
    /// UBSCore.
    Spot = 2,
}

impl Participant {
    /// The name on the wire of the accounts it keeps.
    pub fn account(self) -> &'static str {
        match self {
            Participant::Funding => "FUNDING",
            Participant::Spot => "SPOT",
        }
    }
}

/// A participant's decision about one (transfer, op). It is durable with its effect and never
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Done.
    Success,
    /// Not done, and never will be.
    Refused(Code),
}

impl Decision {
    /// The event of the decision in the state machine.
    pub fn event(self) -> Event {
        match self {
            Decision::Success => Event::Success,
            Decision::Refused(_) => Event::ExplicitFail,
        }
    }

    /// Why it is a refusal; `None` for a success.
    pub fn code(self) -> Option<Code> {
        match self {
            Decision::Success => None,
            Decision::Refused(code) => Some(code),
        }
    }
}

/// Everything a transfer is, apart from where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Its name.
    pub req_id: ReqId,
    /// The client's idempotency key, unique per user.
    pub cid: Option<Cid>,
    /// The owner of the money.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// Which way.
    pub direction: Direction,
    /// Its position in the order of accepts: incarnation in the high bits, a counter in the low
    /// ones.
    pub order_number: u64,
}

/// Money that has entered Funding from outside or has left it, as PostgreSQL has decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalOperation {
    /// EXT_DEPOSIT or EXT_WITHDRAW.
    pub op: Op,
    /// The caller's idempotency key, unique among all external operations: see
    /// [`Cid::of_operation`].
    pub idem_key: Cid,
    /// The owner of the Funding account.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// Its position in the order of accepts, as [`Intent::order_number`].
    pub order_number: u64,
    /// The decision of PostgreSQL.
    pub decision: Decision,
    /// The Funding balance afterwards, smallest units; 0 for a refusal.
    pub balance_after: u128,
}

listed! {
    /// Where a transfer stands. PostgreSQL stores the number. A number is never reused, and numbers
    /// are compared for equality only. `Ord` groups equal states; it is not the life cycle.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(i16)]
    pub enum State {
        /// Accepted; no participant has been asked yet.
        Init = 0,
        /// The source has been asked: it may have paid.
        SourcePending = 10,
        /// The source has paid. The money is in flight.
        SourceDone = 20,
        /// The target has been asked: it may have credited.
        TargetPending = 30,
        /// The target has credited. Terminal.
        Committed = 40,
        /// The source refused, nothing moved. Terminal.
        Failed = -10,
        /// The target refused, the source is being refunded.
        Compensating = -20,
        /// The source has been refunded. Terminal.
        RolledBack = -30,
    }
}

impl State {
    /// The number PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<State> {
        State::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Every name, for a client that has given another one: `INIT, SOURCE_PENDING, …`.
    pub fn names() -> String {
        State::ALL.map(State::name).join(", ")
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            State::Init => "INIT",
            State::SourcePending => "SOURCE_PENDING",
            State::SourceDone => "SOURCE_DONE",
            State::TargetPending => "TARGET_PENDING",
            State::Committed => "COMMITTED",
            State::Failed => "FAILED",
            State::Compensating => "COMPENSATING",
            State::RolledBack => "ROLLED_BACK",
        }
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        match self {
            State::Committed | State::Failed | State::RolledBack => true,
            State::Init
            | State::SourcePending
            | State::SourceDone
            | State::TargetPending
            | State::Compensating => false,
        }
    }

    /// Whether a participant still has to decide an operation that an operator may end: a WITHDRAW
    /// or a DEPOSIT.
    pub fn awaits_decision(self) -> bool {
        match self {
            State::Init | State::SourcePending | State::SourceDone | State::TargetPending => true,
            State::Compensating | State::Committed | State::Failed | State::RolledBack => false,
        }
    }

    /// Where `event` leads, `None` when the table does not admit it.
    pub fn next(self, event: Event) -> Option<State> {
        transfer_machine::Impl::transition(&self, &event)
    }

    /// Whether some sequence of events leads from here to `state`: one commit may pass several
    /// states.
    pub fn leads_to(self, state: State) -> bool {
        let mut nexts = Event::ALL.into_iter().filter_map(|event| self.next(event));
        nexts.any(|next| next == state || next.leads_to(state))
    }

    /// The decision it waits for, at once or after a transition of its own; `None` in a terminal
    /// state.
    pub fn waits_for(self, direction: Direction) -> Option<(Participant, Op)> {
        match self.duty(direction) {
            Duty::Ask(participant, op) => Some((participant, op)),
            Duty::Proceed => self.next(Event::Proceed)?.waits_for(direction),
            Duty::Nothing => None,
        }
    }

    /// The next step, with the participant that it asks.
    pub fn duty(self, direction: Direction) -> Duty {
        match self {
            State::Init | State::SourceDone => Duty::Proceed,
            State::SourcePending => Duty::Ask(direction.source(), Op::Withdraw),
            State::TargetPending => Duty::Ask(direction.target(), Op::Deposit),
            State::Compensating => Duty::Ask(direction.source(), Op::Refund),
            State::Committed | State::Failed | State::RolledBack => Duty::Nothing,
        }
    }
}

/// The next step of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Go on without a participant.
    Proceed,
    /// Ask a participant; its decision moves the transfer.
    Ask(Participant, Op),
    /// Terminal.
    Nothing,
}

/// An event that moves a transfer. An unknown outcome is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The coordinator goes on by itself.
    Proceed,
    /// The participant asked in this state recorded a success.
    Success,
    /// The participant asked in this state recorded a refusal.
    ExplicitFail,
}

impl Event {
    /// Every event.
    pub const ALL: [Event; 3] = [Event::Proceed, Event::Success, Event::ExplicitFail];
}

state_machine! {
    #[state_machine(state(crate::transfer::State), input(crate::transfer::Event))]
    transfer_machine(Init)

    Init(Proceed) => SourcePending,
    SourcePending => {
        Success => SourceDone,
        ExplicitFail => Failed,
    },
    SourceDone(Proceed) => TargetPending,
    TargetPending => {
        Success => Committed,
        ExplicitFail => Compensating,
    },
    Compensating(Success) => RolledBack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_admits_these_transitions_and_no_other() {
        use Event::{ExplicitFail, Proceed, Success};
        use State::*;
        let admitted = [
            (Init, Proceed, SourcePending),
            (SourcePending, Success, SourceDone),
            (SourcePending, ExplicitFail, Failed),
            (SourceDone, Proceed, TargetPending),
            (TargetPending, Success, Committed),
            (TargetPending, ExplicitFail, Compensating),
            (Compensating, Success, RolledBack),
        ];
        for state in State::ALL {
            for event in Event::ALL {
                let want = admitted.iter().find(|row| (row.0, row.1) == (state, event));
                assert_eq!(state.next(event), want.map(|row| row.2), "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_duty_is_what_the_table_waits_for() {
        for direction in [Direction::FundingToSpot, Direction::SpotToFunding] {
            for state in State::ALL {
                let moves = |event| state.next(event).is_some();
                let waits_for = state.waits_for(direction);
                assert_eq!(waits_for.is_none(), state.is_terminal(), "{state:?}");
                let of_refund = waits_for.is_some_and(|(_, op)| op == Op::Refund);
                let resolvable = waits_for.is_some() && !of_refund;
                assert_eq!(state.awaits_decision(), resolvable, "{state:?}");
                match state.duty(direction) {
                    Duty::Proceed => assert!(moves(Event::Proceed) && !moves(Event::Success)),
                    Duty::Ask(_, Op::Refund) => {
                        assert!(moves(Event::Success) && !moves(Event::ExplicitFail))
                    }
                    Duty::Ask(..) => assert!(moves(Event::Success) && moves(Event::ExplicitFail)),
                    Duty::Nothing => assert!(state.is_terminal()),
                }
            }
        }
    }

    /// Goal: numbers and names in PostgreSQL, the log and the API stay the same. Method: those of
    /// the specification, written down a second time.
    #[test]
    fn numbers_and_names_are_those_of_the_specification() {
        use Participant::{Funding, Spot};
        use State::*;
        let states = [
            (Init, 0, "INIT", false),
            (SourcePending, 10, "SOURCE_PENDING", false),
            (SourceDone, 20, "SOURCE_DONE", false),
            (TargetPending, 30, "TARGET_PENDING", false),
            (Committed, 40, "COMMITTED", true),
            (Failed, -10, "FAILED", true),
            (Compensating, -20, "COMPENSATING", false),
            (RolledBack, -30, "ROLLED_BACK", true),
        ];
        assert_eq!(State::ALL, states.map(|(state, ..)| state));
        for (state, number, name, terminal) in states {
            let said = (state.number(), state.name(), state.is_terminal());
            assert_eq!(said, (number, name, terminal), "{state:?}");
            assert_eq!(State::from_number(number), Some(state));
        }
        assert_eq!(State::from_number(-40), None);

        let spot = (Direction::FundingToSpot, 1, "funding_to_spot", ("FUNDING", "SPOT"));
        let funding = (Direction::SpotToFunding, 2, "spot_to_funding", ("SPOT", "FUNDING"));
        for ((way, number, name, accounts), (source, target)) in
            [(spot, (Funding, Spot)), (funding, (Spot, Funding))]
        {
            assert_eq!((way as u8, way.name(), way.accounts()), (number, name, accounts));
            assert_eq!((way.source(), way.target()), (source, target), "{way:?}");
            assert_eq!(Direction::from_number(number), Some(way));
        }
        assert_eq!([0, 3].map(Direction::from_number), [None; 2]);

        let ops = [
            (Op::Withdraw, 1, "WITHDRAW"),
            (Op::Deposit, 2, "DEPOSIT"),
            (Op::Refund, 3, "REFUND"),
            (Op::ExtDeposit, 4, "EXT_DEPOSIT"),
            (Op::ExtWithdraw, 5, "EXT_WITHDRAW"),
            (Op::Reserve, 6, "RESERVE"),
            (Op::Settle, 7, "SETTLE"),
            (Op::Release, 8, "RELEASE"),
            (Op::Post, 9, "POST"),
        ];
        for (op, number, name) in ops {
            assert_eq!((op as u8, op.name()), (number, name));
            assert_eq!((Op::from_number(number), Op::from_name(name)), (Some(op), Some(op)));
        }
        assert_eq!(Op::ALL[..9], ops.map(|(op, ..)| op));
        assert_eq!([0, 10].map(Op::from_number), [None; 2]);
        assert_eq!(Op::from_name("withdraw"), None);
    }

    /// 48 bits of milliseconds, then 80 of chance.
    #[test]
    fn a_name_is_its_time_and_its_chance() {
        let chance = (1 << 80) - 1;
        for (time_ns, random, number) in [
            (1_700_000_000_123_999_999, 42, (1_700_000_000_123 << 80) + 42),
            (1_000_000, u128::MAX, (1 << 80) + chance),
            // Never zero.
            (999_999, 0, 1),
        ] {
            let name = ReqId::generate(time_ns, random);
            assert_eq!(name.number(), number, "{time_ns} {random}");
            assert_eq!(ReqId::new(number), Some(name));
        }
        assert_eq!(ReqId::new(0), None);
        let name = ReqId::new(31).expect("not zero");
        assert_eq!(format!("{name} {name:?}"), format!("{0}Z {0}Z", "0".repeat(25)));
    }

    #[test]
    fn names_lead_back() {
        let req_id = ReqId::generate(1_700_000_000_000_000_000, 42);
        assert_eq!(ReqId::parse(&req_id.to_string()), Some(req_id));
        assert_eq!(ReqId::parse("not a ulid"), None);
        assert_eq!(Cid::new("a.b:c_d-9").as_ref().map(Cid::as_str), Some("a.b:c_d-9"));
        let ours = "recharge/01ARZ3NDEKTSV4RRFFQ69G5FAV/credit";
        assert_eq!((Cid::new(ours), Cid::of_operation("a b")), (None, None));
        assert_eq!(Cid::of_operation(ours).as_ref().map(Cid::as_str), Some(ours));
        for bad in ["", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(Cid::new(bad), None, "{bad:?}");
        }
    }
}
