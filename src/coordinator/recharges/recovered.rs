//! Recharges behind a restore: orders that are remade from their proofs, refunds that are found
//! again, and the refusal of refunds until `ubscore recharge recover` has run.

use tracing::error;

use super::returns::{TakingAnswer, contradicted, returned};
use super::{CHANNEL, PaymentAnswer, RechargeMade, Recharges, Rejection, made, name_of};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::crash;
use crate::postgres::recover::RECOVER_NEXT;
use crate::recharge::act::{RechargeAct, TakeCall};
use crate::recharge::decide::PaymentDecision;
use crate::recharge::facts::{Facts, Taking};
use crate::recharge::order::{Follow, Recharge, RechargeState};
use crate::recharge::payment::{HeldCause, RechargePayment};
use crate::recharge::proof::{ProofKeys, Proven, ProvenOrder};
use crate::recharge::returned::ReturnKind;
use crate::recharge::terms::ChannelTerms;
use crate::recharge::{RechargeId, ReturnId};
use domain::asset::{Asset, Catalog};
use domain::code::Code;
use jiff::{SignedDuration, Timestamp};

/// The actor of everything that is remade.
const RECOVER: &str = "recover";
/// From a remade order to its expiry. Its payment is told before.
const LIFE: SignedDuration = SignedDuration::from_mins(1);

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// Whether `ubscore recharge recover` must run before a refund is sent.
    pub fn needs_recover(&self) -> bool {
        self.restored.is_some_and(|restored| restored.needs_recover)
    }

    /// # Errors
    /// [`Code::NotReturnable`], naming the command.
    pub(super) fn refuse_unrecovered(&self) -> Result<(), Rejection> {
        if !self.needs_recover() {
            return Ok(());
        }
        let why = format!("The database was restored, and returns may be lost: {RECOVER_NEXT}.");
        Err(Rejection { detail: Some(why), ..Rejection::of(Code::NotReturnable) })
    }

    /// Raises an alert about a payment that is held, because the log has other facts about its
    /// credit.
    pub(super) fn report_other(answer: &PaymentAnswer) {
        let PaymentDecision::Hold(HeldCause::Duplicate) = answer.decision else { return };
        let Some(payment) = &answer.payment else { return };
        let (id, trade_no, channel) = (payment.id, &payment.trade_no, &payment.channel);
        let what = format_args!(
            "payment {id}, {trade_no} of channel {channel}: UBSCore's log has a credit of it, or of \
             its order, with other facts"
        );
        alert_about(Alert::RechargeContradiction, &id, what);
    }

    /// Whether UBSCore's log may have a credit of an order that its row does not know.
    pub(super) fn may_be_restored(&self, order: Option<&Recharge>) -> bool {
        let Some(restored) = self.restored else { return false };
        order.is_none_or(|order| order.created_at <= restored.at)
    }

    /// Writes a lost order again, as PAYING, once. Its payment is told behind that.
    ///
    /// # Errors
    /// A [`Rejection`].
    pub async fn remade(&self, order: Recharge) -> Result<RechargeMade, Rejection> {
        let (user, act) = (order.user, RechargeAct::Remake { order: Box::new(order) });
        let made = made(self.act(Some(user), RECOVER, act).await?)?;
        crash::point("recover_after_order");
        Ok(made)
    }

    /// A refund of ours that is lost here: done, if UBSCore's log has its debit. `None`: it has
    /// none, so its money has left the channel, and not its user.
    pub(super) async fn lost_return(
        &self,
        terms: &ChannelTerms,
        payment: &RechargePayment,
        taking: &Taking,
        id: ReturnId,
    ) -> Result<Option<TakingAnswer>, Rejection> {
        if self.restored.is_none() {
            return Ok(None);
        }
        let act = RechargeAct::Take(Box::new(TakeCall {
            payment: name_of(payment),
            asset: payment.asset,
            id,
            kind: ReturnKind::Refund,
            number: taking.number.clone(),
            minor_units: taking.minor_units,
            freezes: false,
            within: false,
        }));
        let user = self.holder(payment).await?;
        match self.act(user, CHANNEL, act).await {
            Ok(outcome) => Ok(Some(TakingAnswer::success(returned(outcome).0, None))),
            Err(rejection) if rejection.code == Code::RechargeNotFound => {
                error!(%id, payment = %payment.id, "a refund is lost here, and its user has the money");
                Ok(None)
            }
            Err(rejection) if rejection.code == Code::IdemKeyConflict => {
                Ok(Some(contradicted(terms, taking)))
            }
            Err(rejection) => Err(rejection),
        }
    }
}

/// The order that a payment of ours describes, as it is remade at `now`; `None`: its proof is none
/// of ours, or does not fit its channel. Its promotion stands there for the record: nothing is
/// reserved, and no bonus is given for it.
pub fn proven(
    proofs: &ProofKeys,
    catalog: &Catalog,
    terms: &ChannelTerms,
    facts: &Facts,
    now: Timestamp,
) -> Option<Recharge> {
    let id = RechargeId::parse(&facts.merchant_no)?;
    let (proven, found) = proofs.verify(facts.proof.as_deref(), &terms.name, &facts.merchant_no);
    let found = found.filter(|order| proven == Proven::Ours && order.asset == terms.asset)?;
    let ProvenOrder { user, asset, amount, bonus, promotion, target } = found;
    let Asset { symbol, precision, .. } = catalog.by_id(asset)?;
    let text = amount.text(*precision);
    let name = &terms.name;
    let expires_at = now.saturating_add(LIFE).unwrap_or(Timestamp::MAX);
    Some(Recharge {
        id,
        user,
        // No client's key has a slash.
        idem_key: format!("recovered/{}", id.ulid()),
        fingerprint: Recharge::fingerprint_of(symbol, &text, name, target, promotion.as_deref()),
        channel: name.clone(),
        asset,
        amount,
        minor_units: terms.minor_units(amount, *precision)?,
        bonus,
        bonus_state: None,
        promotion,
        target,
        state: RechargeState::Paying,
        closing: None,
        code: None,
        reference: Some(facts.trade_no.clone()),
        pay: None,
        payments: 0,
        held: 0,
        attempts: 1,
        next_at: Some(expires_at),
        created_at: id.made_at().unwrap_or(now).min(now),
        expires_at,
        updated_at: now,
        paid_at: None,
        version: 1,
        follow: Follow::default(),
    })
}
