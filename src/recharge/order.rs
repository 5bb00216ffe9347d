//! An order: a user's wish to recharge, and where it stands.

use jiff::Timestamp;
use rust_fsm::{StateMachineImpl, state_machine};

use super::RechargeId;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::ReqId;

/// Where an order stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum RechargeState {
    /// Durable. The channel may know it or not.
    Init = 0,
    /// The payer can pay.
    Paying = 10,
    /// Paid and credited, in one commit. Terminal.
    Paid = 40,
    /// Nothing is expected any more. Terminal: a later payment has a decision of its own.
    Closed = -10,
}

/// An event that moves an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RechargeEvent {
    /// The channel knows it.
    Noted,
    /// A payment was credited for it.
    Credited,
    /// The channel, or an operator, has ended it.
    Ended,
}

impl RechargeEvent {
    /// Every event.
    pub const ALL: [RechargeEvent; 3] =
        [RechargeEvent::Noted, RechargeEvent::Credited, RechargeEvent::Ended];
}

state_machine! {
    #[state_machine(
        state(crate::recharge::order::RechargeState),
        input(crate::recharge::order::RechargeEvent)
    )]
    recharge_machine(Init)

    Init => {
        Noted => Paying,
        Credited => Paid,
        Ended => Closed,
    },
    Paying => {
        Credited => Paid,
        Ended => Closed,
    }
}

impl RechargeState {
    /// Every state.
    pub const ALL: [RechargeState; 4] =
        [RechargeState::Init, RechargeState::Paying, RechargeState::Paid, RechargeState::Closed];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<RechargeState> {
        RechargeState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            RechargeState::Init => "INIT",
            RechargeState::Paying => "PAYING",
            RechargeState::Paid => "PAID",
            RechargeState::Closed => "CLOSED",
        }
    }

    /// Where `event` leads; `None`: the table does not admit it.
    pub fn next(self, event: RechargeEvent) -> Option<RechargeState> {
        recharge_machine::Impl::transition(&self, &event)
    }

    /// Whether some sequence of events leads from here to `state`.
    pub fn leads_to(self, state: RechargeState) -> bool {
        let mut nexts = RechargeEvent::ALL.into_iter().filter_map(|event| self.next(event));
        nexts.any(|next| next == state || next.leads_to(state))
    }

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        RechargeEvent::ALL.into_iter().all(|event| self.next(event).is_none())
    }
}

/// The account that the money is meant for. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum RechargeTarget {
    /// It stays where it arrives.
    Funding = 1,
    /// It goes on to Spot.
    Spot = 2,
}

impl RechargeTarget {
    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The target with this number.
    pub fn from_number(number: i16) -> Option<RechargeTarget> {
        [RechargeTarget::Funding, RechargeTarget::Spot]
            .into_iter()
            .find(|target| target.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            RechargeTarget::Funding => "FUNDING",
            RechargeTarget::Spot => "SPOT",
        }
    }
}

/// A durable wish to close an order. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum ClosingWish {
    /// The user's.
    Cancelled = 1,
    /// Its time is over.
    Expired = 2,
    /// The channel has refused it.
    Refused = 3,
    /// An operator's.
    Operator = 4,
}

impl ClosingWish {
    /// Every wish.
    pub const ALL: [ClosingWish; 4] =
        [ClosingWish::Cancelled, ClosingWish::Expired, ClosingWish::Refused, ClosingWish::Operator];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The wish with this number.
    pub fn from_number(number: i16) -> Option<ClosingWish> {
        ClosingWish::ALL.into_iter().find(|wish| wish.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            ClosingWish::Cancelled => "CANCELLED",
            ClosingWish::Expired => "EXPIRED",
            ClosingWish::Refused => "REFUSED",
            ClosingWish::Operator => "OPERATOR",
        }
    }
}

/// Where the bonus of an order stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum BonusState {
    /// It has left the money of its promotion, for this order.
    Reserved = 1,
    /// The order has ended without it: the promotion has it again. Terminal.
    Returned = 2,
    /// Credited to the user, in the commit that says PAID. Terminal.
    Given = 3,
}

impl BonusState {
    /// Every state.
    pub const ALL: [BonusState; 3] =
        [BonusState::Reserved, BonusState::Returned, BonusState::Given];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<BonusState> {
        BonusState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            BonusState::Reserved => "RESERVED",
            BonusState::Returned => "RETURNED",
            BonusState::Given => "GIVEN",
        }
    }
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recharge {
    /// Its id.
    pub id: RechargeId,
    /// The owner of the Funding account.
    pub user: UserId,
    /// The client's idempotency key, one order a user.
    pub idem_key: String,
    /// A repeat of the key must equal it: [`Recharge::fingerprint_of`].
    pub fingerprint: String,
    /// The channel's name.
    pub channel: String,
    /// The asset.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: Amount,
    /// The same in the channel's minor units.
    pub minor_units: i64,
    /// Out of a promotion, smallest units.
    pub bonus: u64,
    /// The promotion, if there is one.
    pub promotion: Option<String>,
    /// Where the money is meant for.
    pub target: RechargeTarget,
    /// Where it stands.
    pub state: RechargeState,
    /// The wish to close it.
    pub closing: Option<ClosingWish>,
    /// Why it is closed.
    pub code: Option<Code>,
    /// The channel's own number of the order.
    pub reference: Option<String>,
    /// The data that the payer needs: for the owner alone, while PAYING and not closing.
    pub pay: Option<String>,
    /// Payments that name it.
    pub payments: u32,
    /// Those of them that are HELD.
    pub held: u32,
    /// Tries since the order last changed otherwise. 1 from the beginning: the POST may have sent
    /// it.
    pub attempts: u32,
    /// When the till looks at it next; `None`: never.
    pub next_at: Option<Timestamp>,
    /// By the service's clock.
    pub created_at: Timestamp,
    /// When it is closed unpaid.
    pub expires_at: Timestamp,
    /// By the service's clock.
    pub updated_at: Timestamp,
    /// When it was credited, by the service's clock.
    pub paid_at: Option<Timestamp>,
    /// Rises by one with each flight that changes the row; 1 when it is made.
    pub version: u64,
    /// How far its money has gone on to its target.
    pub follow: Follow,
    /// Where its bonus stands; `None`: no promotion has set one apart.
    pub bonus_state: Option<BonusState>,
}

/// How far the money of a PAID order has gone on from Funding to Spot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    /// Where it stands.
    pub state: FollowState,
    /// The transfer, once it is known.
    pub req_id: Option<ReqId>,
    /// Why it did not go on yet, or never does.
    pub code: Option<Code>,
}

/// See [`Follow`]. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i16)]
pub enum FollowState {
    /// Not yet, or nothing is to follow.
    #[default]
    Waiting = 0,
    /// It is on Spot. Terminal.
    Arrived = 40,
    /// The transfer has failed, and the money is in Funding. Terminal.
    Failed = -10,
    /// No transfer was accepted in time, and the money is in Funding. Terminal.
    GivenUp = -20,
}

impl FollowState {
    /// Every state.
    pub const ALL: [FollowState; 4] =
        [FollowState::Waiting, FollowState::Arrived, FollowState::Failed, FollowState::GivenUp];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<FollowState> {
        FollowState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            FollowState::Waiting => "WAITING",
            FollowState::Arrived => "ARRIVED",
            FollowState::Failed => "FAILED",
            FollowState::GivenUp => "GIVEN_UP",
        }
    }
}

/// A repeat of an idempotency key has another body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifferingFields(pub Vec<&'static str>);

impl Recharge {
    /// The body of a request in a form that compares as a value. `asset` and `amount`: as text.
    pub fn fingerprint_of(
        asset: &str,
        amount: &str,
        channel: &str,
        target: RechargeTarget,
        promotion: Option<&str>,
    ) -> String {
        let promotion = promotion.unwrap_or("");
        format!("{asset}:{amount}:{channel}:{}:{promotion}", target.name())
    }

    /// Compares the fingerprint of a repeat.
    ///
    /// # Errors
    /// [`DifferingFields`]: the names of the fields that differ.
    pub fn replayed(&self, fingerprint: &str) -> Result<(), DifferingFields> {
        if self.fingerprint == fingerprint {
            return Ok(());
        }
        let fields = ["asset", "amount", "channel", "to", "promotion"];
        let pairs = self.fingerprint.splitn(5, ':').zip(fingerprint.splitn(5, ':')).zip(fields);
        let differ = pairs.filter(|((one, other), _)| one != other);
        Err(DifferingFields(differ.map(|(_, field)| field).collect()))
    }

    /// The bonus that its user has, or gets with its payment; 0 without one.
    pub fn bonus_due(&self) -> u64 {
        match self.bonus_state {
            Some(BonusState::Reserved | BonusState::Given) => self.bonus,
            Some(BonusState::Returned) | None => 0,
        }
    }

    /// Whether it has ended without its bonus, which its promotion has not got back yet.
    pub fn owes_bonus(&self) -> bool {
        self.state.is_terminal() && self.bonus_state == Some(BonusState::Reserved)
    }

    /// Whether it has a wish to be closed.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether the till may query or close it: not while a payment of it is HELD.
    pub fn is_open(&self) -> bool {
        !self.state.is_terminal() && self.held == 0
    }
}

/// One step of an order's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeStep {
    /// The state afterwards.
    pub state: RechargeState,
    /// The person or part behind it.
    pub actor: String,
    /// Why, if the state does not say it.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_orders_admits_these_events_and_no_other() {
        use RechargeEvent::{Credited, Ended, Noted};
        use RechargeState::{Closed, Init, Paid, Paying};
        let admitted = [
            (Init, Noted, Paying),
            (Init, Credited, Paid),
            (Init, Ended, Closed),
            (Paying, Credited, Paid),
            (Paying, Ended, Closed),
        ];
        for state in RechargeState::ALL {
            for event in RechargeEvent::ALL {
                let want = admitted.iter().find(|row| (row.0, row.1) == (state, event));
                assert_eq!(state.next(event), want.map(|row| row.2), "{state:?} {event:?}");
            }
            assert_eq!(RechargeState::from_number(state.number()), Some(state));
            assert_eq!(state.is_terminal(), matches!(state, Paid | Closed), "{state:?}");
        }
        for state in FollowState::ALL {
            assert_eq!(FollowState::from_number(state.number()), Some(state), "{}", state.name());
        }
    }
}
