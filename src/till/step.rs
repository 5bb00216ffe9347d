//! The decisions of the till, from the row of an order and the time alone: the step that is due,
//! the time of the next try, and the meaning of an answer. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::channels::ChannelLimits;
use crate::coordinator::recharges::PaymentAnswer;
use crate::recharge::answers::Queried;
use crate::recharge::decide::PaymentDecision;
use crate::recharge::order::{ClosingWish, FollowState, Recharge, RechargeState, RechargeTarget};
use crate::recharge::returned::RechargeReturn;

/// The first pause behind a call without an end. It doubles with each further one.
const RETRY: Duration = Duration::from_secs(1);
/// How long behind a channel's own end of payment no payment can come any more.
const FENCE: SignedDuration = SignedDuration::from_mins(5);
/// An order that is not closed so long behind its end of payment is stuck, and so is a return that
/// is not ended so long behind its beginning.
const STUCK: SignedDuration = SignedDuration::from_hours(1);

/// The step that is due for an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TillStep {
    /// Make it at the channel.
    Create,
    /// Write down the wish to close it.
    Wish(ClosingWish),
    /// End it at the channel, and ask behind that.
    Close,
    /// Ask for its state.
    Query,
    /// Send its money on to Spot.
    Follow,
    /// Give its bonus back to its promotion.
    GiveBack,
    /// Nothing before this time; `None`: nothing ever.
    Nothing(Option<Timestamp>),
}

/// How often an order is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From PAYING to the first question. It doubles with each further one.
    pub query_after: Duration,
    /// The longest pause between two calls.
    pub query_cap: Duration,
}

/// The meaning of an answer to a question about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TillVerdict {
    /// It is paid: the payments are decided.
    Tell,
    /// Nothing can be paid any more: it is closed.
    End,
    /// It is asked again at its time.
    Again,
}

/// The effect of the decisions about the payments of an answer on their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// One was decided now.
    Moved,
    /// None was, and one has not ended.
    Waits,
    /// None was, and each one has ended before.
    Over,
}

/// The step that is due for an order at `now`.
pub fn step(order: &Recharge, limits: &ChannelLimits, now: Timestamp) -> TillStep {
    let follows =
        order.target == RechargeTarget::Spot && order.follow.state == FollowState::Waiting;
    match order.state {
        _ if order.owes_bonus() => {}
        RechargeState::Closed => return TillStep::Nothing(None),
        RechargeState::Paid if !follows => return TillStep::Nothing(None),
        // A person decides about its payment first.
        RechargeState::Init | RechargeState::Paying if order.held > 0 => {
            return TillStep::Nothing(None);
        }
        _ => {}
    }
    match order.next_at {
        None => return TillStep::Nothing(None),
        Some(at) if at > now => return TillStep::Nothing(Some(at)),
        Some(_) => {}
    }
    match order.state {
        _ if order.owes_bonus() => TillStep::GiveBack,
        RechargeState::Paid => TillStep::Follow,
        _ if order.closing.is_some() && now < closes_at(order, limits) => TillStep::Query,
        _ if order.closing.is_some() => TillStep::Close,
        _ if now >= order.expires_at => TillStep::Wish(ClosingWish::Expired),
        RechargeState::Init => TillStep::Create,
        _ => TillStep::Query,
    }
}

/// The time of the next look behind a try of `step` at `now`, if that try has no end. `random`: any
/// number, so that orders that failed together are not tried together.
pub fn next_try(
    order: &Recharge,
    step: TillStep,
    limits: &ChannelLimits,
    pace: Pace,
    now: Timestamp,
    random: u64,
) -> Timestamp {
    let tries = order.attempts.saturating_sub(1);
    let refused = order.closing == Some(ClosingWish::Refused);
    let (first, tries) = match step {
        // The first pause was that behind PAYING.
        TillStep::Query if order.closing.is_none() => (pace.query_after, tries + 1),
        TillStep::Query if !refused => (pace.query_after, tries),
        _ => (RETRY, tries),
    };
    let at = later(now, pause(first, tries, pace.query_cap, random));
    // The expiry, the first close and the last one are in time.
    let bounds = match step {
        TillStep::Create | TillStep::Query if order.closing.is_none() => {
            [Some(order.expires_at), None]
        }
        TillStep::Query => [Some(closes_at(order, limits)), fence_of(order, limits)],
        TillStep::Close => [fence_of(order, limits), None],
        _ => [None, None],
    };
    bounds.into_iter().flatten().filter(|bound| *bound > now).fold(at, Timestamp::min)
}

/// The time of the next look behind a try of a return.
pub fn next_return(back: &RechargeReturn, pace: Pace, now: Timestamp, random: u64) -> Timestamp {
    later(now, pause(RETRY, back.attempts, pace.query_cap, random))
}

/// The time of the first question behind PAYING.
pub fn first_query(order: &Recharge, pace: Pace, now: Timestamp) -> Timestamp {
    let at = later(now, pace.query_after);
    if order.expires_at > now { at.min(order.expires_at) } else { at }
}

/// The meaning of an answer about `order`, as it stood when the question was asked, at `asked_at`.
pub fn verdict(
    order: &Recharge,
    answer: &Queried,
    limits: &ChannelLimits,
    asked_at: Timestamp,
) -> TillVerdict {
    let Some(closing) = order.closing else {
        return match answer {
            Queried::Paid(_) => TillVerdict::Tell,
            _ => TillVerdict::Again,
        };
    };
    let over = fence_of(order, limits).is_some_and(|fence| asked_at >= fence);
    // The channel has refused it, and has none. Or it has no end of payment of its own, and nothing
    // that a payer was told of.
    let unknown_to_payers = !limits.ends_payment && order.reference.is_none();
    match answer {
        Queried::Paid(_) => TillVerdict::Tell,
        Queried::Closed => TillVerdict::End,
        Queried::Absent if closing == ClosingWish::Refused || unknown_to_payers => TillVerdict::End,
        Queried::Open | Queried::Absent if over => TillVerdict::End,
        Queried::Open | Queried::Absent | Queried::Unknown(_) => TillVerdict::Again,
    }
}

/// The effect of the decisions about all payments of an answer. An answer without one waits.
pub fn left_by(answers: &[PaymentAnswer]) -> Left {
    let ended = |answer: &PaymentAnswer| {
        let payment = answer.payment.as_ref();
        answer.decision == PaymentDecision::Repeat
            && payment.is_some_and(|payment| payment.disposition.is_terminal())
    };
    if answers.iter().any(|answer| answer.decision.writes()) {
        Left::Moved
    } else if !answers.is_empty() && answers.iter().all(ended) {
        Left::Over
    } else {
        Left::Waits
    }
}

/// Whether a transfer that is refused for now is given up.
pub fn gives_up(order: &Recharge, follow_for: Duration, now: Timestamp) -> bool {
    order.paid_at.is_some_and(|paid_at| now >= later(paid_at, follow_for))
}

/// Whether the close of an order does not end.
pub fn is_stuck(order: &Recharge, now: Timestamp) -> bool {
    let late = order.expires_at.saturating_add(STUCK).unwrap_or(Timestamp::MAX);
    order.closing.is_some() && order.is_open() && now >= late
}

/// Whether a return does not end.
pub fn is_return_stuck(back: &RechargeReturn, now: Timestamp) -> bool {
    now >= back.created_at.saturating_add(STUCK).unwrap_or(Timestamp::MAX)
}

/// The first time at which the channel closes an order.
fn closes_at(order: &Recharge, limits: &ChannelLimits) -> Timestamp {
    later(order.created_at, limits.close_after)
}

/// The time behind which no payment comes; `None`: the channel has no end of payment of its own.
fn fence_of(order: &Recharge, limits: &ChannelLimits) -> Option<Timestamp> {
    let fence = || order.expires_at.saturating_add(FENCE).unwrap_or(Timestamp::MAX);
    limits.ends_payment.then(fence)
}

/// A pause that doubles with each try, up to `cap`, with a random second half.
pub(super) fn pause(first: Duration, tries: u32, cap: Duration, random: u64) -> Duration {
    let doubled = first.saturating_mul(1_u32 << tries.min(24)).min(cap.max(RETRY));
    let half_us = u64::try_from(doubled.as_micros() / 2).unwrap_or(u64::MAX / 2);
    Duration::from_micros(half_us + random % (half_us + 1))
}

pub(super) fn later(from: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
