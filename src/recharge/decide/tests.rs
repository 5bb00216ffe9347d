use jiff::Timestamp;
use proptest::prelude::*;

use super::super::order::{Follow, RechargeTarget};
use super::super::payment::SeenBy;
use super::super::{PaymentId, RechargeId};
use super::*;
use domain::account::UserId;
use domain::asset::AssetId;

const AT: Timestamp = Timestamp::UNIX_EPOCH;
const POLICY: fn() -> RechargePolicy = RechargePolicy::default;

fn terms() -> ChannelTerms {
    let (name, currency) = ("wechat".to_owned(), "CNY".to_owned());
    ChannelTerms { name, asset: AssetId(4), currency, minor_digits: 2 }
}

/// An order of 100 CNY that is PAYING.
pub(crate) fn order() -> Recharge {
    Recharge {
        bonus_state: None,
        id: RechargeId::new(77 << 70).expect("not zero"),
        user: UserId::new(1001).expect("an id"),
        idem_key: "order-1".to_owned(),
        fingerprint: "CNY:100:wechat:FUNDING:".to_owned(),
        channel: "wechat".to_owned(),
        asset: AssetId(4),
        amount: Amount::new(100_000_000).expect("not zero"),
        minor_units: 10_000,
        bonus: 0,
        promotion: None,
        target: RechargeTarget::Funding,
        state: RechargeState::Paying,
        closing: None,
        code: None,
        reference: None,
        pay: None,
        payments: 0,
        held: 0,
        attempts: 1,
        next_at: None,
        created_at: AT,
        expires_at: AT,
        updated_at: AT,
        paid_at: None,
        version: 1,
        follow: Follow::default(),
    }
}

pub(crate) fn facts() -> Facts {
    Facts {
        merchant_no: order().id.to_string(),
        trade_no: "4200001".to_owned(),
        minor_units: 10_000,
        total_minor_units: 10_000,
        currency: "CNY".to_owned(),
        discount: false,
        returned: Returned::None,
        paid_at: AT,
        proof: None,
    }
}

/// A payment as it is recorded for these facts.
pub(crate) fn recorded(
    facts: &Facts,
    disposition: Disposition,
    cause: Option<HeldCause>,
) -> RechargePayment {
    RechargePayment {
        id: PaymentId::new(5).expect("not zero"),
        channel: "wechat".to_owned(),
        trade_no: facts.trade_no.clone(),
        merchant_no: facts.merchant_no.clone(),
        recharge: (!cause.is_some_and(HeldCause::is_unmatched)).then(|| order().id),
        ordinal: None,
        user: None,
        minor_units: facts.minor_units,
        currency: facts.currency.clone(),
        asset: AssetId(4),
        amount: terms().amount(facts.minor_units, 6),
        disposition,
        cause,
        seen_by: SeenBy::Callback,
        paid_at: AT,
        at: AT,
        updated_at: AT,
        version: 1,
    }
}

/// The parts that a decision rests on, for a test to change.
#[derive(Clone, Debug)]
struct Case {
    facts: Facts,
    order: Option<Recharge>,
    recorded: Option<RechargePayment>,
    proven: Proven,
    account: Option<AccountStatus>,
    again: bool,
    policy: RechargePolicy,
}

fn case() -> Case {
    let (order, recorded, account) = (Some(order()), None, Some(AccountStatus::Active));
    let (facts, proven) = (facts(), Proven::Nothing);
    Case { facts, order, recorded, proven, account, again: false, policy: POLICY() }
}

impl Case {
    fn with(mut self, change: impl FnOnce(&mut Case)) -> Case {
        change(&mut self);
        self
    }

    fn in_state(self, state: RechargeState) -> Case {
        self.with(|case| case.order.as_mut().expect("an order").state = state)
    }

    fn decided(&self) -> PaymentDecision {
        let terms = terms();
        let known = KnownPayment {
            terms: &terms,
            amount: terms.amount(self.facts.minor_units, 6),
            proven: self.proven,
            recorded: self.recorded.as_ref(),
            order: self.order.as_ref(),
            account: self.account,
            again: self.again,
        };
        decide(&known, &self.facts, self.policy)
    }

    fn told(&self) -> PaymentTold {
        self.decided().told(self.recorded.as_ref())
    }
}

const PAYS: PaymentDecision = PaymentDecision::Credit { pays: true };
const FURTHER: PaymentDecision = PaymentDecision::Credit { pays: false };

#[test]
fn an_equal_payment_of_an_open_order_is_credited_and_pays_it() {
    for state in [RechargeState::Init, RechargeState::Paying] {
        assert_eq!(case().in_state(state).decided(), PAYS);
    }
    for account in [None, Some(AccountStatus::Frozen)] {
        assert_eq!(case().with(|case| case.account = account).decided(), PAYS);
    }
    assert_eq!(case().with(|case| case.proven = Proven::Broken).decided(), PAYS);
    assert_eq!(case().with(|case| case.proven = Proven::Elsewhere).decided(), PAYS);
    assert_eq!(case().told(), PaymentTold::Success);
}

#[test]
fn a_payment_without_our_mark_is_foreign() {
    for number in ["", "order-1", "wpy_01ARZ3NDEKTSV4RRFFQ69G5FAV", "wrc_1"] {
        let foreign = case().with(|case| case.facts.merchant_no = number.to_owned());
        assert_eq!(foreign.decided(), PaymentDecision::Foreign, "{number}");
        assert_eq!(foreign.told(), PaymentTold::Success);
    }
    let elsewhere = case().with(|case| (case.order, case.proven) = (None, Proven::Elsewhere));
    assert_eq!(elsewhere.decided(), PaymentDecision::Foreign);
}

#[test]
fn an_unknown_order_of_ours_is_held_and_comes_again() {
    for (proven, cause) in [
        (Proven::Nothing, HeldCause::Unmatched),
        (Proven::Ours, HeldCause::Unmatched),
        (Proven::Broken, HeldCause::Unproven),
    ] {
        let lost = case().with(|case| (case.order, case.proven) = (None, proven));
        assert_eq!(lost.decided(), PaymentDecision::Hold(cause));
        assert_eq!(lost.told(), PaymentTold::NotFound);
        let row = recorded(&facts(), Disposition::Held, Some(cause));
        let again = lost.with(|case| case.recorded = Some(row));
        assert_eq!(
            (again.decided(), again.told()),
            (PaymentDecision::Repeat, PaymentTold::NotFound)
        );
        let back = again.with(|case| case.order = Some(order()));
        assert_eq!((back.decided(), back.told()), (PAYS, PaymentTold::Success));
    }
    let other = case().with(|case| case.order.as_mut().expect("one").channel = "card".to_owned());
    assert_eq!(other.decided(), PaymentDecision::Hold(HeldCause::Unmatched));
}

#[test]
fn other_facts_of_a_recorded_payment_are_a_contradiction() {
    let changes: [fn(&mut Facts); 3] = [
        |facts| facts.minor_units = 9_999,
        |facts| facts.currency = "USD".to_owned(),
        |facts| facts.merchant_no = RechargeId::new(8).expect("not zero").to_string(),
    ];
    for change in changes {
        for disposition in Disposition::ALL {
            let row = recorded(&facts(), disposition, None);
            let case = case().with(|case| {
                change(&mut case.facts);
                case.recorded = Some(row);
            });
            assert_eq!(case.decided(), PaymentDecision::Contradiction);
            assert_eq!(case.told(), PaymentTold::Conflict);
        }
    }
}

#[test]
fn each_unusual_payment_is_held_with_its_cause() {
    type Change = fn(&mut Case);
    let cases: [(HeldCause, Change); 5] = [
        (HeldCause::Currency, |case| case.facts.currency = "USD".to_owned()),
        (HeldCause::Overflow, |case| case.facts.minor_units = i64::MAX),
        (HeldCause::Discounted, |case| case.facts.discount = true),
        (HeldCause::PartReturned, |case| case.facts.returned = Returned::Part),
        (HeldCause::AccountDisabled, |case| case.account = Some(AccountStatus::Disabled)),
    ];
    for (cause, change) in cases {
        for state in RechargeState::ALL {
            let held = case().in_state(state).with(change);
            assert_eq!(held.decided(), PaymentDecision::Hold(cause), "{state:?}");
            assert_eq!(held.told(), PaymentTold::Success);
        }
    }
    let whole = case().with(|case| case.facts.returned = Returned::Whole);
    assert_eq!(whole.decided(), PaymentDecision::Returned);
}

#[test]
fn another_amount_follows_its_rule() {
    for minor_units in [9_999, 10_001] {
        let other = case().with(|case| case.facts.minor_units = minor_units);
        assert_eq!(other.decided(), PaymentDecision::Hold(HeldCause::Amount));
        let credited = other.with(|case| case.policy.differing = PaymentRule::Credit);
        assert_eq!(credited.decided(), PAYS);
    }
}

#[test]
fn a_second_payment_and_a_late_one_follow_their_rules() {
    use PaymentRule::{Credit, Hold, Return};
    let paid = case().in_state(RechargeState::Paid);
    for (rule, want) in [
        (Return, PaymentDecision::Return),
        (Hold, PaymentDecision::Hold(HeldCause::Duplicate)),
        (Credit, PaymentDecision::Hold(HeldCause::Duplicate)),
    ] {
        let second = paid.clone().with(|case| case.policy.duplicate = rule);
        assert_eq!(second.decided(), want, "{rule:?}");
    }
    let closed = case().in_state(RechargeState::Closed);
    let differing = closed.clone().with(|case| case.facts.minor_units = 1);
    for (rule, equal, other) in [
        (Credit, FURTHER, PaymentDecision::Hold(HeldCause::Amount)),
        (Return, PaymentDecision::Return, PaymentDecision::Return),
        (Hold, PaymentDecision::Hold(HeldCause::Late), PaymentDecision::Hold(HeldCause::Late)),
    ] {
        for (case, want) in [(&closed, equal), (&differing, other)] {
            let late = case.clone().with(|case| case.policy.late = rule);
            assert_eq!(late.decided(), want, "{rule:?}");
        }
    }
}

/// Goal: an operator's rematch takes a held payment through the table again, and no other one.
#[test]
fn a_rematch_decides_a_held_payment_and_no_other() {
    for disposition in Disposition::ALL {
        let row = recorded(&facts(), disposition, Some(HeldCause::AccountDisabled));
        let case = case().with(|case| (case.recorded, case.again) = (Some(row), true));
        let held = disposition == Disposition::Held;
        assert_eq!(case.decided(), if held { PAYS } else { PaymentDecision::Repeat });
    }
}

/// Goal: another minor unit or asset of the channel than that of the order is held, and nothing is
/// credited that the payer did not see.
#[test]
fn a_payment_in_other_terms_than_its_order_is_held() {
    let hundredfold = Amount::new(10_000_000_000).expect("not zero");
    let digits = case().with(|case| case.order.as_mut().expect("one").amount = hundredfold);
    assert_eq!(digits.decided(), PaymentDecision::Hold(HeldCause::Amount));
    let currency = PaymentDecision::Hold(HeldCause::Currency);
    for state in RechargeState::ALL {
        let case = case().in_state(state);
        let asset = case.clone().with(|case| case.order.as_mut().expect("one").asset = AssetId(9));
        assert_eq!(asset.decided(), currency, "{state:?}");
        let mut row = recorded(&facts(), Disposition::Held, Some(HeldCause::Discounted));
        row.asset = AssetId(9);
        let row = case.with(|case| (case.recorded, case.again) = (Some(row), true));
        assert_eq!(row.decided(), currency, "{state:?}");
    }
}

/// Goal: money that the channel gave back in part is never credited whole, by later facts neither.
#[test]
fn a_part_that_went_back_is_not_forgotten() {
    let held = PaymentDecision::Hold(HeldCause::PartReturned);
    for returned in [Returned::Part, Returned::Whole] {
        let lost = case().with(|case| (case.order, case.facts.returned) = (None, returned));
        assert_eq!(lost.decided(), held, "{returned:?}");
        let mut row = recorded(&facts(), Disposition::Held, Some(HeldCause::PartReturned));
        row.recharge = None;
        assert_eq!(held.told(Some(&row)), PaymentTold::NotFound);
        assert_eq!(PaymentDecision::Repeat.told(Some(&row)), PaymentTold::NotFound);
        let back = lost.with(|case| {
            (case.order, case.facts.returned) = (Some(order()), Returned::None);
            case.recorded = Some(row);
        });
        assert_eq!((back.decided(), held.told(None)), (held, PaymentTold::Success));
        let row = recorded(&facts(), Disposition::Held, Some(HeldCause::PartReturned));
        let again = back.with(|case| (case.recorded, case.again) = (Some(row), true));
        assert_eq!((again.decided(), again.told()), (held, PaymentTold::Success));
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let rule = || {
        proptest::sample::select(vec![PaymentRule::Credit, PaymentRule::Return, PaymentRule::Hold])
    };
    let state = proptest::sample::select(RechargeState::ALL.to_vec());
    let account = proptest::option::of(proptest::sample::select(vec![
        AccountStatus::Active,
        AccountStatus::Frozen,
        AccountStatus::Disabled,
    ]));
    let returned = proptest::sample::select(vec![Returned::None, Returned::Part, Returned::Whole]);
    let proven = proptest::sample::select(vec![
        Proven::Nothing,
        Proven::Ours,
        Proven::Broken,
        Proven::Elsewhere,
    ]);
    let paid = (9_999..=10_001_i64, any::<bool>(), any::<bool>(), returned);
    let known = (proptest::option::weighted(0.9, state), account, proven);
    (paid, known, (rule(), rule(), rule())).prop_map(|(paid, known, rules)| {
        case().with(|case| {
            (case.facts.minor_units, case.facts.discount, _, case.facts.returned) = paid;
            if paid.2 {
                case.facts.currency = "USD".to_owned();
            }
            let (state, account, proven) = known;
            case.order = state.map(|state| Recharge { state, ..order() });
            (case.account, case.proven) = (account, proven);
            (case.policy.differing, case.policy.duplicate, case.policy.late) = rules;
        })
    })
}

proptest! {
    /// A repeat of a decided payment never decides anew, though everything else has changed.
    #[test]
    fn a_repeat_never_decides_anew(
        case in any_case(), index in 0..Disposition::ALL.len(), later in any_case(),
    ) {
        let row = recorded(&case.facts, Disposition::ALL[index], None);
        let repeat = Case { facts: case.facts, recorded: Some(row), ..later };
        prop_assert_eq!(repeat.decided(), PaymentDecision::Repeat);
    }

    /// Credited only if the amounts are equal or a rule says so, and to an account that takes it.
    #[test]
    fn a_credit_has_its_reason(case in any_case()) {
        if let PaymentDecision::Credit { pays } = case.decided() {
            let order = case.order.as_ref().expect("an order");
            let equal = order.minor_units == case.facts.minor_units;
            prop_assert!(equal || case.policy.differing == PaymentRule::Credit);
            prop_assert!(case.account != Some(AccountStatus::Disabled));
            prop_assert_eq!(&case.facts.currency, "CNY");
            prop_assert!(!case.facts.discount && case.facts.returned == Returned::None);
            prop_assert_eq!(pays, !order.state.is_terminal());
        }
    }

    /// Of any payments of one order, one at most makes it PAID, and none is credited behind it.
    #[test]
    fn an_order_is_paid_once(cases in proptest::collection::vec(any_case(), 1..6)) {
        let mut state = RechargeState::Paying;
        let mut credits = 0;
        for case in cases {
            let case = case.with(|case| case.order = Some(Recharge { state, ..order() }));
            if let PaymentDecision::Credit { pays } = case.decided() {
                prop_assert!(pays);
                (state, credits) = (RechargeState::Paid, credits + 1);
            }
        }
        prop_assert!(credits <= 1);
    }
}
