//! Bonuses of promotions: reserved with an order, and given back behind its end. The credit of a
//! bonus is part of the flight that makes its order PAID.

use std::sync::Arc;

use tracing::{info, warn};

use super::{RechargeMade, Recharges, Rejection};
use crate::adapters::Adapter;
use crate::crash;
use crate::gate::Gate;
use crate::postgres::promotions::remade::Remade;
use crate::postgres::promotions::{PromotionFunded, Promotions, Reserved};
use crate::recharge::order::Recharge;
use crate::recharge::promotion::{NotApplicable, is_promotion_name};
use domain::amount::Amount;
use domain::code::Code;

/// The parts by which bonuses are set apart.
pub(super) struct Bonuses {
    promotions: Promotions,
    /// Closed while the service is halted.
    gate: Arc<Gate>,
    /// Held by one reserve: all wait for the row of a promotion, and each would keep a
    /// connection of the pool meanwhile.
    turn: tokio::sync::Mutex<()>,
}

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// The same with promotions. Without them none applies.
    #[must_use]
    pub fn with_promotions(self, promotions: Promotions, gate: Arc<Gate>) -> Recharges<T, F> {
        let turn = tokio::sync::Mutex::default();
        Recharges { bonuses: Some(Bonuses { promotions, gate, turn }), ..self }
    }

    /// Makes an order with the bonus of a promotion, or finds the one of its key. `asked`: the
    /// order without its bonus.
    pub(super) async fn reserved(
        &self,
        asked: &Recharge,
        name: &str,
        actor: &str,
    ) -> Result<RechargeMade, Rejection> {
        // A replay comes before the checks that change with time.
        if let Some(made) = self.of_key(asked).await? {
            return Ok(made);
        }
        let bonuses = self.bonuses.as_ref().filter(|_| is_promotion_name(name));
        let Some(Bonuses { promotions, gate, turn }) = bonuses else {
            return Err(not_applicable(name, NotApplicable::Unknown));
        };
        let turn = turn.lock().await;
        let pass = gate.pass().ok_or(Code::ServiceHalted)?;
        let reserved = promotions.reserve(asked, name, self.rules.open_max, actor).await;
        drop((pass, turn));
        crash::point("promotion_after_reserve");
        match reserved {
            Ok(Reserved::Made(order)) => Ok(RechargeMade { order: *order, replayed: false }),
            Ok(Reserved::Not(why)) => Err(not_applicable(name, why)),
            Ok(Reserved::TooManyOpen) => Err(Code::TooManyOpen.into()),
            Ok(Reserved::KeyInUse) => self.of_key(asked).await?.ok_or_else(Rejection::unknown),
            Err(error) => {
                warn!(%error, "the end of a reserve is asked by its key");
                // Without a row it may still be under way: the same draft again tells.
                self.of_key(asked).await?.ok_or_else(Rejection::unknown)
            }
        }
    }

    /// The order of a key, if its body is this one.
    async fn of_key(&self, asked: &Recharge) -> Result<Option<RechargeMade>, Rejection> {
        let found = self.reads.recharge_of_key(asked.user, &asked.idem_key).await;
        let found = found.map_err(|error| {
            warn!(%error, "the order of a key cannot be read");
            Rejection::unknown()
        })?;
        let Some(order) = found else { return Ok(None) };
        order.replayed(&asked.fingerprint).map_err(|differing| {
            let fields = differing.0.join(", ");
            let detail = Some(format!("This idem_key was used with another {fields}."));
            Rejection { detail, ..Rejection::of(Code::DuplicateRequest) }
        })?;
        let replayed = order.id != asked.id;
        Ok(Some(RechargeMade { order, replayed }))
    }

    /// Makes a lost order again with its bonus RESERVED. `by`: actor and reason.
    pub(super) async fn remade_with_bonus(
        &self,
        order: &Recharge,
        by: (&str, &str),
    ) -> Result<Remade, Rejection> {
        let Some(Bonuses { promotions, gate, .. }) = &self.bonuses else {
            return Err(Rejection::of(Code::SystemError));
        };
        let _pass = gate.pass().ok_or(Code::ServiceHalted)?;
        promotions.remake(order, by).await.map_err(|error| {
            warn!(%error, recharge_id = %order.id, "the end of a remade order is unknown");
            Rejection::unknown()
        })
    }

    /// Puts money from outside into a promotion, by an operator, once for the key. `by`: actor and
    /// reason.
    ///
    /// # Errors
    /// [`Code::ServiceHalted`]; a [`Rejection`] that is unknown: the same call again tells.
    pub async fn fund(
        &self,
        name: &str,
        amount: Amount,
        idem_key: &str,
        by: (&str, &str),
    ) -> Result<PromotionFunded, Rejection> {
        let Some(Bonuses { promotions, gate, .. }) = &self.bonuses else {
            return Err(Rejection::of(Code::SystemError));
        };
        let _pass = gate.pass().ok_or(Code::ServiceHalted)?;
        promotions.fund(name, amount, idem_key, by).await.map_err(|error| {
            warn!(%error, "the end of funding is unknown");
            Rejection::unknown()
        })
    }

    /// Gives the reserved bonus of an order that is over back to its promotion. An order that has
    /// changed meanwhile is looked at again.
    ///
    /// # Errors
    /// A [`Rejection`]: its row tells whether it was done. Its user may have the bonus since before
    /// a restore; then it stays until its payment is told.
    pub async fn bonus_returned(&self, order: &Recharge) -> Result<(), Rejection> {
        let Some(Bonuses { promotions, gate, .. }) = &self.bonuses else {
            return Err(Rejection::of(Code::SystemError));
        };
        let pass = gate.pass().ok_or(Code::ServiceHalted)?;
        let returned = promotions.give_back(order).await;
        drop(pass);
        crash::point("promotion_after_return");
        self.waits.wake(order.id);
        let done = returned.map_err(|error| {
            warn!(%error, recharge_id = %order.id, "a bonus waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        })?;
        if !done && self.stands_at(order).await? {
            warn!(recharge_id = %order.id, "a bonus stays: UBSCore's log has it given");
            return Err(Rejection::of(Code::SystemError));
        }
        info!(recharge_id = %order.id, done, "a bonus goes back to its promotion");
        Ok(())
    }
}

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// Whether an order is in PostgreSQL as the caller has it.
    async fn stands_at(&self, order: &Recharge) -> Result<bool, Rejection> {
        let row = self.reads.recharge(order.id).await.map_err(|error| {
            warn!(%error, recharge_id = %order.id, "a bonus waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        })?;
        Ok(row.is_some_and(|row| row.version == order.version))
    }
}

fn not_applicable(name: &str, why: NotApplicable) -> Rejection {
    let name: String = name.chars().take(16).collect();
    let detail = Some(format!("The promotion {name:?} does not apply: {why}."));
    Rejection { detail, ..Rejection::of(Code::PromotionNotApplicable) }
}
