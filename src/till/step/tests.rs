use jiff::ToSpan;

use super::*;
use crate::recharge::answers::ChannelDoubt;
use crate::recharge::decide::tests::order as some_order;
use crate::recharge::order::BonusState;
use crate::recharge::returned::{ReturnKind, ReturnState};
use crate::recharge::{PaymentId, ReturnId};

const WECHAT: ChannelLimits = ChannelLimits {
    close_after: Duration::from_secs(300),
    expiry_max: Duration::from_secs(7_200),
    proof_bytes_max: 128,
    ends_payment: true,
};
const CARD: ChannelLimits =
    ChannelLimits { close_after: Duration::ZERO, ends_payment: false, ..WECHAT };
const PACE: Pace =
    Pace { query_after: Duration::from_secs(15), query_cap: Duration::from_secs(300) };
/// The shortest pause: nothing is added to its half.
const SHORTEST: u64 = 0;

/// So many seconds behind the beginning of the order.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

/// An order that is due from its beginning on, and expires 1500 s behind it.
fn order(state: RechargeState) -> Recharge {
    Recharge {
        state,
        next_at: Some(at(0)),
        created_at: at(0),
        expires_at: at(1_500),
        updated_at: at(0),
        paid_at: (state == RechargeState::Paid).then_some(at(10)),
        ..some_order()
    }
}

fn closing(state: RechargeState, closing: ClosingWish) -> Recharge {
    Recharge { closing: Some(closing), ..order(state) }
}

/// Goal: the step that is due follows from the row and the time alone.
#[test]
fn each_row_has_one_step() {
    use ClosingWish::{Cancelled, Expired, Refused};
    use RechargeState::{Closed, Init, Paid, Paying};
    let spot = |state| Recharge { target: RechargeTarget::Spot, ..order(state) };
    let held = |order: Recharge| Recharge { held: 1, payments: 1, ..order };
    let reserved = |order: Recharge| Recharge { bonus_state: Some(BonusState::Reserved), ..order };
    let never = |order: Recharge| Recharge { next_at: None, ..order };
    let arrived = |mut order: Recharge| {
        order.follow.state = FollowState::Arrived;
        order
    };
    for (what, row, limits, second, want) in [
        ("new", order(Init), WECHAT, 0, TillStep::Create),
        ("not yet", order(Init), WECHAT, -1, TillStep::Nothing(Some(at(0)))),
        ("noted", order(Paying), WECHAT, 0, TillStep::Query),
        ("without a time", never(order(Paying)), WECHAT, 0, TillStep::Nothing(None)),
        ("expired, never noted", order(Init), WECHAT, 1_500, TillStep::Wish(Expired)),
        ("expired", order(Paying), CARD, 1_500, TillStep::Wish(Expired)),
        ("not closed at this age", closing(Paying, Cancelled), WECHAT, 299, TillStep::Query),
        ("closed at this age", closing(Paying, Cancelled), WECHAT, 300, TillStep::Close),
        ("closed at any age", closing(Paying, Cancelled), CARD, 0, TillStep::Close),
        ("no create behind a wish", closing(Init, Cancelled), CARD, 0, TillStep::Close),
        ("nor behind a refusal", closing(Init, Refused), WECHAT, 0, TillStep::Query),
        ("held", held(order(Paying)), WECHAT, 2_000, TillStep::Nothing(None)),
        ("held and closing", held(closing(Paying, Expired)), CARD, 0, TillStep::Nothing(None)),
        ("paid", order(Paid), WECHAT, 0, TillStep::Nothing(None)),
        ("paid for Spot", spot(Paid), WECHAT, 0, TillStep::Follow),
        ("and a second payment held", held(spot(Paid)), WECHAT, 0, TillStep::Follow),
        ("arrived", arrived(spot(Paid)), WECHAT, 0, TillStep::Nothing(None)),
        ("closed", spot(Closed), WECHAT, 0, TillStep::Nothing(None)),
        ("a bonus of an open order", reserved(order(Paying)), WECHAT, 0, TillStep::Query),
        ("closed without its bonus", reserved(order(Closed)), WECHAT, 0, TillStep::GiveBack),
        ("and a late payment held", reserved(held(order(Closed))), CARD, 0, TillStep::GiveBack),
        ("paid without its bonus", reserved(spot(Paid)), WECHAT, 0, TillStep::GiveBack),
        ("not yet either", reserved(order(Paid)), WECHAT, -1, TillStep::Nothing(Some(at(0)))),
    ] {
        assert_eq!(step(&row, &limits, at(second)), want, "{what}");
    }
}

/// Goal: an order is closed by a verified answer behind the wish alone, and a payment always wins.
#[test]
fn only_a_verified_answer_behind_the_wish_ends_an_order() {
    use ClosingWish::{Cancelled, Refused};
    use RechargeState::{Init, Paying};
    let unknown = || Queried::Unknown(ChannelDoubt::Status(503));
    let paid = || Queried::Paid(Vec::new());
    let told = |order: Recharge| Recharge { reference: Some("pi_1".to_owned()), ..order };
    let (early, fence) = (1_799, 1_800);
    for (what, row, limits, second, ends) in [
        // Of: Open, Closed, Absent, Unknown.
        ("no wish", order(Paying), WECHAT, fence, [false; 4]),
        ("a wish", closing(Paying, Cancelled), WECHAT, early, [false, true, false, false]),
        ("behind the fence", closing(Paying, Cancelled), WECHAT, fence, [true, true, true, false]),
        ("no fence", told(closing(Paying, Cancelled)), CARD, fence, [false, true, false, false]),
        ("without a way to pay", closing(Init, Cancelled), CARD, early, [false, true, true, false]),
        ("never noted", closing(Init, Cancelled), WECHAT, early, [false, true, false, false]),
        ("refused", closing(Init, Refused), WECHAT, 1, [false, true, true, false]),
    ] {
        let answers = [Queried::Open, Queried::Closed, Queried::Absent, unknown()];
        for (answer, ends) in answers.iter().zip(ends) {
            let want = if ends { TillVerdict::End } else { TillVerdict::Again };
            assert_eq!(verdict(&row, answer, &limits, at(second)), want, "{what}: {answer:?}");
        }
        assert_eq!(verdict(&row, &paid(), &limits, at(second)), TillVerdict::Tell, "{what}");
    }
}

/// Goal: pauses double up to their cap, with a random second half, and no bound is missed.
#[test]
fn a_try_has_its_next_time() {
    use ClosingWish::{Cancelled, Expired, Refused};
    use RechargeState::{Init, Paid, Paying};
    let tried = |attempts, order: Recharge| Recharge { attempts, ..order };
    let longest = |row: &Recharge, step, limits: &ChannelLimits, second, half_us: u64| {
        next_try(row, step, limits, PACE, at(second), half_us)
    };
    for (what, row, step, limits, second, seconds) in [
        ("the first create", order(Init), TillStep::Create, WECHAT, 0, 1),
        ("the third", tried(3, order(Init)), TillStep::Create, WECHAT, 5, 4),
        ("capped", tried(40, order(Init)), TillStep::Create, WECHAT, 5, 300),
        ("the first question", order(Paying), TillStep::Query, WECHAT, 15, 30),
        ("the second", tried(2, order(Paying)), TillStep::Query, WECHAT, 45, 60),
        ("a late one", tried(9, order(Paying)), TillStep::Query, CARD, 600, 300),
        ("refused", closing(Init, Refused), TillStep::Query, WECHAT, 1, 1),
        ("cancelled", closing(Paying, Cancelled), TillStep::Query, WECHAT, 1, 15),
        ("a close", closing(Paying, Expired), TillStep::Close, CARD, 1_500, 1),
        ("the money goes on", order(Paid), TillStep::Follow, CARD, 20, 1),
    ] {
        let all = u64::try_from(seconds).expect("above 0") * 500_000;
        assert_eq!(longest(&row, step, &limits, second, all), at(second + seconds), "{what}");
        let half = longest(&row, step, &limits, second, SHORTEST);
        assert_eq!(half, at(second) + (seconds * 500).milliseconds(), "{what}");
    }
    let full = 150_000_000;
    let late = tried(20, order(Paying));
    assert_eq!(longest(&late, TillStep::Query, &WECHAT, 1_400, full), at(1_500), "the expiry");
    let young = tried(20, closing(Paying, Cancelled));
    assert_eq!(longest(&young, TillStep::Query, &WECHAT, 200, full), at(300), "the first close");
    let old = tried(20, closing(Paying, Expired));
    assert_eq!(longest(&old, TillStep::Close, &WECHAT, 1_600, full), at(1_800), "the fence");
    assert_eq!(longest(&old, TillStep::Close, &WECHAT, 1_801, full), at(2_101));
    assert_eq!(first_query(&order(Init), PACE, at(3)), at(18));
    assert_eq!(first_query(&order(Init), PACE, at(1_490)), at(1_500));
    assert_eq!(first_query(&order(Init), PACE, at(1_510)), at(1_525));
}

/// Goal: a person is called for what does not end, and for nothing before.
#[test]
fn what_does_not_end_is_stuck() {
    let closing = closing(RechargeState::Paying, ClosingWish::Expired);
    assert!(!is_stuck(&closing, at(1_500 + 3_599)) && is_stuck(&closing, at(1_500 + 3_600)));
    assert!(!is_stuck(&order(RechargeState::Paying), at(100_000)));
    let back = RechargeReturn {
        bonus: 0,
        id: ReturnId::new(9).expect("not zero"),
        payment: PaymentId::new(7).expect("not zero"),
        kind: ReturnKind::Refund,
        minor_units: 1,
        state: ReturnState::Sent,
        next_at: Some(at(0)),
        created_at: at(0),
        updated_at: at(0),
        version: 2,
        attempts: 3,
        idem_key: None,
        number: None,
        code: None,
    };
    assert!(!is_return_stuck(&back, at(3_599)) && is_return_stuck(&back, at(3_600)));
    assert_eq!(next_return(&back, PACE, at(0), 4_000_000), at(8));
    let paid = order(RechargeState::Paid);
    let day = Duration::from_secs(86_400);
    assert!(!gives_up(&paid, day, at(10 + 86_399)) && gives_up(&paid, day, at(10 + 86_400)));
    assert!(!gives_up(&order(RechargeState::Paying), day, at(100_000)));
}
