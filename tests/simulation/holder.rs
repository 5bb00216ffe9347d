//! Transactions over holds of Funding: two users, rounds, and an end. It asks until it is answered,
//! repeats answered acts, and tries forbidden ones.

use std::sync::Arc;

use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::transfer::Decision;

use super::chance::Chance;
use super::world::{ASSET, World, user};

/// Order numbers that no watermark reaches: the number of a transaction is above it until its end.
const NUMBERS: u64 = 1 << 60;

/// The caller of transactions.
pub(super) struct Holder {
    pub(super) world: Arc<World>,
    pub(super) chance: Chance,
}

impl Holder {
    /// Makes transactions, one after the other.
    pub(super) async fn live(mut self, name: u64) {
        for nth in 0..self.world.plan.transactions {
            let pause = self.chance.micros(0, 120_000);
            self.world.time.sleep(pause).await;
            self.transact(name * 1_000 + nth).await;
        }
    }

    async fn transact(&mut self, number: u64) {
        let users = self.world.plan.users;
        let (payer, payee) = (self.chance.between(1, users), self.chance.between(1, users));
        let hold = |side: &str, of: u64| {
            let key = HoldKey::new(&format!("{number}:{side}:{of}")).expect("a key");
            move |act| HoldOrder {
                key: key.clone(),
                order_number: NUMBERS + number,
                user: user(of),
                asset: ASSET,
                purpose: 0,
                special: false,
                act,
                outside_numbers: [0, 0],
            }
        };
        let (of_payer, of_payee) = (hold("payer", payer), hold("payee", payee));
        let (mut apart, rounds) = (0, self.chance.between(1, 2));
        for nth in 0..rounds {
            let round = u8::try_from(2 * nth + 1).expect("few");
            let amount = apart + self.chance.between(1, 120);
            let set = HoldAct::Set { round, amount, pays: true, paid: false };
            let paid = HoldAct::Set { round, amount: 0, pays: false, paid: true };
            let tried = [self.ask(of_payer(set)).await, self.ask(of_payee(paid)).await];
            if tried == [Decision::Success; 2] {
                apart = amount;
                continue;
            }
            // Back to the rounds before.
            let back = HoldAct::Set { round: round + 1, amount: apart, pays: false, paid: false };
            self.ask(of_payer(back)).await;
            // A late try of the same round.
            if self.chance.one_in(2) {
                self.ask(of_payer(set)).await;
            }
        }
        if apart > 0 && !self.chance.one_in(3) {
            // Some of it goes to the outside, and the payee gets money from there. No draw, and no
            // world with services, so that their runs stay the same.
            let crosses = |nth: u64| self.world.plan.deals == 0 && number.is_multiple_of(nth);
            let withdrawn = if crosses(2) { apart.div_ceil(2) } else { 0 };
            let deposited = if crosses(3) { 5 } else { 0 };
            let (moved, passed) = (apart - withdrawn, 0);
            let pays =
                HoldAct::Settle { taken: moved, brought: 0, deposited: 0, withdrawn, passed };
            self.ask(of_payer(pays)).await;
            let brought = of_payee(HoldAct::Settle {
                taken: 0,
                brought: moved,
                deposited,
                withdrawn: 0,
                passed,
            });
            self.ask(brought.clone()).await;
            let keys = [&of_payer(HoldAct::Release).key, &brought.key];
            self.world.law.lock().transaction_settled(&keys);
            if self.chance.one_in(3) {
                self.forbidden(of_payee(HoldAct::Release)).await;
            }
            return;
        }
        for of in [of_payer(HoldAct::Release), of_payee(HoldAct::Release)] {
            self.ask(of).await;
        }
        self.forbidden(of_payee(HoldAct::settle(0, 5))).await;
        // A late try runs into the end.
        let late = HoldAct::Set { round: 9, amount: 1, pays: true, paid: false };
        let late = self.ask(of_payer(late)).await;
        self.world.law.lock().claim(late != Decision::Success, "a hold ends once", String::new);
    }

    /// Asks until it is answered, and often once more.
    async fn ask(&mut self, order: HoldOrder) -> Decision {
        loop {
            let serving = self.world.service().await;
            let asked = serving.coordinator.hold(order.clone());
            if let Some(Ok(decision)) = self.world.within(500, asked).await {
                let what = format_args!("{} {:?}: {decision:?}", order.key, order.act);
                self.world.trace(what);
                self.world.law.lock().hold_answered(&order, decision);
                if !self.chance.one_in(3) {
                    return decision;
                }
            }
            let pause = self.chance.micros(1_000, 80_000);
            self.world.time.sleep(pause).await;
        }
    }

    /// Tries a forbidden act once.
    async fn forbidden(&mut self, order: HoldOrder) {
        let serving = self.world.service().await;
        let asked = serving.coordinator.hold(order.clone());
        let answered = self.world.within(500, asked).await;
        let done = matches!(answered, Some(Ok(_)));
        self.world.law.lock().claim(!done, "a hold ends once", || format!("{order:?}"));
    }
}
