//! A second, naive model of venues and holds, and random markets that are compared with it.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// A second, naive model: amounts by name, legs booked one after the other.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) available: BTreeMap<(u64, u32), u64>,
    /// Owner, asset and amount by venue and number.
    pub(super) holds: BTreeMap<(u32, u64), (u64, u32, u64)>,
    pub(super) accounts: BTreeMap<u64, AccountStatus>,
}

impl Model {
    fn pays(&mut self, user: u64, asset: u32, amount: u64) -> bool {
        let balance = self.available.entry((user, asset)).or_default();
        let left = balance.checked_sub(amount);
        *balance = left.unwrap_or(*balance);
        left.is_some()
    }

    fn may_pay(&self, user: u64) -> Result<(), Code> {
        match self.accounts.get(&user) {
            None => Err(Code::SourceAccountNotFound),
            Some(AccountStatus::Active) => Ok(()),
            Some(AccountStatus::Frozen) => Err(Code::AccountFrozen),
            Some(AccountStatus::Disabled) => Err(Code::AccountDisabled),
        }
    }

    /// Takes out of a hold. Returns its owner and the amount.
    fn take(&mut self, key: (u32, u64), amount: u64) -> Result<(u64, u64), Code> {
        let (user, _, left) = self.holds.get_mut(&key).ok_or(Code::HoldNotFound)?;
        let amount = if amount == ALL { *left } else { amount };
        *left = left.checked_sub(amount).ok_or(Code::HoldExceeded)?;
        Ok((*user, amount))
    }

    pub(super) fn decide(
        &mut self,
        venue: u32,
        number: u64,
        command: &Command,
    ) -> Result<(), (Code, u8)> {
        let before = self.clone();
        let mut leg = 0;
        let decided = self.book(venue, number, command, &mut leg);
        match decided {
            Ok(()) => self.holds.retain(|_, (_, _, left)| *left > 0),
            Err(_) => *self = before,
        }
        decided.map_err(|code| (code, leg))
    }

    fn book(
        &mut self,
        venue: u32,
        number: u64,
        command: &Command,
        index: &mut u8,
    ) -> Result<(), Code> {
        let ensure = |right, code| if right { Ok(()) } else { Err(code) };
        match command {
            Command::Reserve { user, asset, amount, onto, .. } => {
                ensure(*amount > 0, Code::InvalidPosting)?;
                let key = (venue, if *onto == 0 { number } else { *onto });
                match self.holds.get(&key) {
                    None => ensure(*onto == 0, Code::HoldNotFound)?,
                    Some((owner, of, _)) => {
                        ensure((owner, of) == (user, asset), Code::InvalidPosting)?;
                    }
                }
                self.may_pay(*user)?;
                ensure(self.pays(*user, *asset, *amount), Code::InsufficientBalance)?;
                self.holds.entry(key).or_insert((*user, *asset, 0)).2 += amount;
                Ok(())
            }
            Command::Release { hold, amount, .. } => {
                ensure(*amount > 0, Code::InvalidPosting)?;
                let asset = self.holds.get(&(venue, *hold)).map_or(0, |hold| hold.1);
                let (owner, amount) = self.take((venue, *hold), *amount)?;
                *self.available.entry((owner, asset)).or_default() += amount;
                Ok(())
            }
            Command::Post { legs, .. } => {
                ensure(!legs.is_empty(), Code::InvalidPosting)?;
                for leg in legs {
                    let (Place::Available(from), Place::Available(to)) = (leg.from, leg.to) else {
                        return Err(Code::InvalidPosting);
                    };
                    ensure(from != to && leg.amount > 0, Code::InvalidPosting)?;
                    self.may_pay(from)?;
                    let payee = self.accounts.get(&to);
                    ensure(payee != Some(&AccountStatus::Disabled), Code::AccountDisabled)?;
                    let paid = self.pays(from, leg.asset, leg.amount);
                    ensure(paid, Code::InsufficientBalance)?;
                    self.accounts.entry(to).or_insert(AccountStatus::Active);
                    *self.available.entry((to, leg.asset)).or_default() += leg.amount;
                    *index += 1;
                }
                Ok(())
            }
            Command::Settle { legs, .. } => self.settle(venue, legs, index),
        }
    }

    fn settle(&mut self, venue: u32, legs: &[Leg], index: &mut u8) -> Result<(), Code> {
        let ensure = |right, code| if right { Ok(()) } else { Err(code) };
        ensure(!legs.is_empty(), Code::InvalidPosting)?;
        let mut arrived = BTreeMap::<(u64, u32), u64>::new();
        for leg in legs {
            let held = matches!(leg.from, Place::Hold(_));
            let amount = leg.amount > 0 && (held || leg.amount != ALL);
            ensure(leg.from != leg.to && amount, Code::InvalidPosting)?;
            ensure(held || !matches!(leg.to, Place::Hold(_)), Code::InvalidPosting)?;
            let owner = match leg.from {
                Place::Hold(number) => {
                    let hold = self.holds.get(&(venue, number)).ok_or(Code::HoldNotFound)?;
                    ensure(hold.1 == leg.asset, Code::InvalidPosting)?;
                    Some(hold.0)
                }
                _ => None,
            };
            if let Place::Hold(number) = leg.to {
                let hold = self.holds.get(&(venue, number)).ok_or(Code::HoldNotFound)?;
                ensure((Some(hold.0), hold.1) == (owner, leg.asset), Code::InvalidPosting)?;
            }
            if let Place::Available(user) = leg.from {
                let known = self.accounts.contains_key(&user);
                ensure(known, Code::SourceAccountNotFound)?;
            }
            if let Place::Available(user) = leg.to {
                let known = self.accounts.contains_key(&user);
                ensure(known, Code::TargetAccountNotFound)?;
            }
            let amount = match leg.from {
                Place::Hold(number) => self.take((venue, number), leg.amount)?.1,
                Place::Available(user) => {
                    let arrived = arrived.entry((user, leg.asset)).or_default();
                    let left = arrived.checked_sub(leg.amount).ok_or(Code::InvalidPosting)?;
                    *arrived = left;
                    self.pays(user, leg.asset, leg.amount);
                    leg.amount
                }
                other => panic!("{other:?}"),
            };
            match leg.to {
                Place::Available(user) => {
                    *arrived.entry((user, leg.asset)).or_default() += amount;
                    *self.available.entry((user, leg.asset)).or_default() += amount;
                }
                Place::Hold(number) => {
                    let hold = self.holds.get_mut(&(venue, number)).expect("looked up above");
                    hold.2 += amount;
                }
                other => panic!("{other:?}"),
            }
            *index += 1;
        }
        Ok(())
    }

    fn agrees(&self, market: &Market) {
        for (&(user, asset), &units) in &self.available {
            assert_eq!(market.ledger.available(user, asset), units.into(), "{user} {asset}");
        }
        let mut held = BTreeMap::new();
        for venue in [1, 2] {
            let mut found = Vec::new();
            market.ledger.holds_of(venue, 0, 256, &mut found);
            assert!(found.is_sorted_by_key(|row| row.number), "in number order");
            for row in found {
                held.insert((venue, row.number), (row.user, row.asset, row.remaining));
            }
        }
        assert_eq!(held, self.holds);
        for (user, asset) in (1..7).flat_map(|user| [(user, BTC), (user, USD)]) {
            let of = |hold: &&(u64, u32, u64)| (hold.0, hold.1) == (user, asset);
            let want: u64 = self.holds.values().filter(of).map(|hold| hold.2).sum();
            assert_eq!(market.ledger.held(user, asset), want.into());
            let rows = market.ledger.held_of(user, asset, 256);
            let chained: u128 = rows.iter().map(|row| row.amount).sum();
            assert_eq!(chained, want.into(), "the chain of a balance has all its holds");
        }
    }
}

#[derive(Clone, Debug)]
enum TradingStep {
    Send { venue: u32, command: Box<Command>, acknowledges: u8 },
    Transfer { op: Op, user: u64, asset: u32, amount: u64 },
    Status { user: u64, status: AccountStatus },
    Forget,
}

fn place_of_trade() -> impl Strategy<Value = Place> {
    prop_oneof![
        3 => (1..6_u64).prop_map(Place::Available),
        4 => (1..12_u64).prop_map(Place::Hold),
    ]
}

fn trading_step() -> impl Strategy<Value = TradingStep> {
    let amount = || prop_oneof![8 => 1..60_u64, 2 => Just(ALL), 1 => Just(0_u64)];
    let asset = || prop_oneof![Just(BTC), Just(USD)];
    let a_leg = (place_of_trade(), place_of_trade(), asset(), amount());
    let a_leg = a_leg.prop_map(|(from, to, asset, amount)| leg(from, to, asset, amount));
    let some = prop::collection::vec(a_leg, 0..5);
    let paid = (1..6_u64, 1..7_u64, asset(), 1..400_u64);
    let paid = paid
        .prop_map(|(from, to, asset, amount)| leg(available(from), available(to), asset, amount));
    let onto = prop_oneof![4 => Just(0), 1 => 1..12_u64];
    let reserve = (1..6_u64, asset(), 1..400_u64, onto).prop_map(|(user, asset, amount, onto)| {
        Command::Reserve { reference: 3, user, asset, amount, onto }
    });
    let command = prop_oneof![
        5 => reserve,
        5 => some.prop_map(settle),
        3 => (1..12_u64, amount()).prop_map(|(hold, amount)| release(hold, amount)),
        2 => prop::collection::vec(paid, 0..4).prop_map(post),
    ];
    let status = prop_oneof![
        4 => Just(AccountStatus::Active), 1 => Just(AccountStatus::Frozen),
        1 => Just(AccountStatus::Disabled),
    ];
    let op = prop_oneof![Just(Op::Deposit), Just(Op::Withdraw)];
    prop_oneof![
        20 => (1..3_u32, command, 0..4_u8).prop_map(|(venue, command, acknowledges)| {
            TradingStep::Send { venue, command: Box::new(command), acknowledges }
        }),
        3 => (op, 1..6_u64, asset(), 1..300_u64).prop_map(|(op, user, asset, amount)| {
            TradingStep::Transfer { op, user, asset, amount }
        }),
        1 => (1..6_u64, status).prop_map(|(user, status)| TradingStep::Status { user, status }),
        1 => Just(TradingStep::Forget),
    ]
}

impl Market {
    fn carry_out(&mut self, step: &TradingStep, model: &mut Model) {
        match *step {
            TradingStep::Send { venue, ref command, acknowledges } => {
                let state = self.ledger.venue_state(venue).expect("registered");
                let may_post = venue == 1 || !matches!(**command, Command::Post { .. });
                let want = match may_post {
                    true => model.decide(venue, state.last + 1, command),
                    false => refused(Code::InvalidPosting, 0),
                };
                let acknowledged = (state.acknowledged + u64::from(acknowledges)).min(state.last);
                let answer = self.send_with(venue, command, acknowledged);
                let decided = match answer.decision {
                    Decision::Success => Ok(()),
                    Decision::Refused(code) => Err((code, answer.leg)),
                };
                assert_eq!(decided, want, "{command:?}");
            }
            TradingStep::Transfer { op, user, asset, amount } => {
                let decided = self.order(op, user, asset, amount);
                if decided == Decision::Success {
                    model.accounts.entry(user).or_insert(AccountStatus::Active);
                    let balance = model.available.entry((user, asset)).or_default();
                    let after = balance.checked_add_signed(match op.takes() {
                        true => -i64::try_from(amount).expect("small"),
                        false => i64::try_from(amount).expect("small"),
                    });
                    *balance = after.expect("no more than is available");
                }
            }
            TradingStep::Status { user, status } => {
                self.status(user, status);
                model.accounts.insert(user, status);
            }
            TradingStep::Forget => self.ledger.forget_all(),
        }
    }
}

proptest! {
    /// MLT-007, HLD-015, L12, L13, L15. Goal: every command of two venues is decided as the naive
    /// model decides it, among transfers and statuses; a recount gives every sum that is carried
    /// along; a repeat is told the same; and every way back leads to the same ledger.
    #[test]
    fn a_random_market_is_what_the_naive_model_says(
        steps in prop::collection::vec(trading_step(), 1..120), cut in any::<Index>()
    ) {
        let mut market = Market::new(PLACES);
        let mut model = Model::default();
        for user in 1..=4 {
            model.accounts.insert(user, AccountStatus::Active);
            for asset in [BTC, USD] {
                model.available.insert((user, asset), 1_000);
            }
        }
        for step in &steps {
            market.carry_out(step, &mut model);
            model.agrees(&market);
            market.recount();
        }
        let larger = VenuePlaces { holds_max: 500, window: 3, ..PLACES.venues };
        let replayed = market.replayed(Places { venues: larger, ..PLACES }).expect("a log");
        prop_assert_eq!(replayed.digest(), market.ledger.digest());

        let mut part = Market { ledger: Ledger::new(PLACES), log: Vec::new(), next_order: 0 };
        let records = cut.index(market.log.len() + 1);
        catch_up(&mut part.ledger, &market.log[..records]).expect("a log");
        let mut from_facts = part.restored().expect("facts");
        catch_up(&mut from_facts, &market.log).expect("the rest");
        market.ledger.forget_all();
        from_facts.forget_all();
        let restored = market.restored().expect("facts");
        for ledger in [from_facts, restored] {
            prop_assert_eq!(ledger.digest(), market.ledger.digest());
            let other = Market { ledger, log: Vec::new(), next_order: 0 };
            prop_assert_eq!(other.facts(), market.facts());
            model.agrees(&other);
        }
    }

    /// MLT-004, replayed: a record that is changed in any byte is not followed.
    #[test]
    fn a_changed_record_of_a_posting_is_not_replayed(
        at in any::<Index>(), bits in 1..=255_u8
    ) {
        let mut market = Market::new(PLACES);
        market.send(1, &reserve(1, USD, 100)).expect("enough");
        market.send(1, &settle([leg(Place::Hold(1), available(2), USD, 30)])).expect("its own");
        let (_, payload) = market.log.last_mut().expect("a settle");
        let at = at.index(payload.len());
        payload[at] ^= bits;
        let replayed = market.replayed(PLACES);
        // The reference, the body and the acknowledgement decide nothing, but the digest has them.
        if let Ok(ledger) = replayed {
            prop_assert_ne!(ledger.digest(), market.ledger.digest(), "byte {}", at);
        }
    }
}
