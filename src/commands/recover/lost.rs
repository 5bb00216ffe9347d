//! The keys that a repair has brought back before their orders, and the steps that bring the rest
//! of a payment back.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, anyhow};

use super::walk::Walk;
use crate::adapters::Adapter;
use crate::channels::RefundAsk;
use crate::channels::open::OpenChannels;
use crate::coordinator::Rejection;
use crate::coordinator::recharges::{PaymentAnswer, Recharges};
use crate::postgres::reads::Reads;
use crate::postgres::recover::LostKey;
use crate::recharge::answers::{BillKind, BillLine, ChannelDoubt, Refunded};
use crate::recharge::decide::PaymentTold;
use crate::recharge::facts::{Facts, Returned, Taking};
use crate::recharge::movement;
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment, SeenBy};
use crate::recharge::returned::ReturnState;
use crate::recharge::terms::ChannelTerms;
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use domain::code::Code;

/// The actor of decisions that are made again.
const ACTOR: &str = "recover";

/// External operations of recharges without a movement.
pub(super) struct Lost {
    pub(super) keys: Vec<LostKey>,
}

/// Refunds with the terms of their channels, and the number of calls without an end.
type Refunds = (Vec<(Arc<ChannelTerms>, BillLine)>, usize);

impl Lost {
    pub(super) async fn read(reads: &Reads) -> anyhow::Result<Lost> {
        let keys = reads.lost_keys().await.context("read the keys of recharges")?;
        Ok(Lost { keys })
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|lost| lost.key == key)
    }

    /// Whether the log has a credit of a payment, or of its order.
    pub(super) fn has_credit(&self, id: PaymentId, order: Option<RechargeId>) -> bool {
        self.has(&movement::payment_credit(id))
            || order.is_some_and(|order| self.has(&movement::recharge_credit(order)))
    }

    /// The debits that have paid receivables: the return and the number of each act, in turn.
    pub(super) fn receivables(&self) -> BTreeSet<(ReturnId, usize)> {
        self.keys.iter().filter_map(|lost| movement::receivable_debit(&lost.key)).collect()
    }

    /// A payment in words.
    pub(super) fn payment_text(&self, terms: &ChannelTerms, facts: &Facts) -> String {
        let (trade_no, no) = (&facts.trade_no, &facts.merchant_no);
        let id = PaymentId::of(&terms.name, trade_no);
        let how = match self.has_credit(id, RechargeId::parse(no)) {
            true => "its credit is in the log, and nothing is booked",
            false => "decide it",
        };
        format!("payment {id}, {trade_no} of {no} by channel {}: {how}", terms.name)
    }

    /// A return in words; `None`: nothing of it is lost.
    pub(super) async fn return_text(
        &self,
        reads: &Reads,
        terms: &ChannelTerms,
        line: &BillLine,
    ) -> anyhow::Result<Option<String>> {
        let payment = reads.channel_payment(&terms.name, &line.trade_no).await;
        let payment = payment.context("read a payment")?;
        let gone = |payment: &RechargePayment| {
            matches!(payment.disposition, Disposition::Returned | Disposition::Dismissed)
        };
        if payment.as_ref().is_some_and(gone) {
            return Ok(None);
        }
        let BillLine { minor_units, trade_no, .. } = line;
        let what = |what: &str| Ok(Some(what.to_owned()));
        let Some(id) = return_of(line) else {
            let number = line.channel_return_no.as_deref().unwrap_or_default();
            return what(&format!("taking {number}, {minor_units} of {trade_no}: book it again"));
        };
        let row = reads.recharge_return(id).await.context("read a return")?;
        if row.as_ref().is_some_and(|row| row.state == ReturnState::Done) {
            return Ok(None);
        }
        let how = match (self.has(&movement::return_key(id)), row, &payment) {
            (true, ..) => "its debit is in the log, and nothing is booked",
            (false, Some(_), _) => "its channel has ended it",
            (false, None, Some(_)) => "it has left the channel and not its user: take it",
            // The payment came and went, and no user had it.
            (false, None, None) => return Ok(None),
        };
        what(&format!("return {id}, {minor_units} of {trade_no} by channel {}: {how}", terms.name))
    }

    /// Refunds that no bill has yet: the log names their numbers, and the channels of the user's
    /// payments are asked for each.
    pub(super) async fn refunds(
        &self,
        reads: &Reads,
        channels: &OpenChannels,
        walk: &Walk<'_>,
    ) -> anyhow::Result<Refunds> {
        let (mut found, mut unknown) = (Vec::new(), 0);
        for lost in self.keys.iter().filter(|lost| lost.op.takes()) {
            let ulid = lost.key.strip_prefix("return/").unwrap_or_default();
            let Some(id) = ReturnId::parse(&format!("{}{ulid}", ReturnId::PREFIX)) else {
                continue;
            };
            let payments = reads.credited_to(lost.user, lost.asset).await;
            for payment in payments.context("read the payments of a user")? {
                let Some(open) = channels.get(&payment.channel) else { continue };
                let Some(minor_units) = payment.minor_units_of(lost.amount) else { continue };
                if minor_units > payment.minor_units {
                    continue;
                }
                let return_no = id.to_string();
                let ask = RefundAsk {
                    return_no: &return_no,
                    merchant_no: &payment.merchant_no,
                    trade_no: &payment.trade_no,
                    minor_units,
                    total_minor_units: payment.minor_units,
                    currency: &payment.currency,
                };
                match walk.paced(|| open.channel.query_refund(&ask)) {
                    Refunded::Done => {
                        let line = line_of(&payment, return_no, minor_units);
                        found.push((Arc::clone(&open.terms), line));
                        break;
                    }
                    // It is not one of this payment, or not one of a refund.
                    Refunded::Unknown(ChannelDoubt::Code(_) | ChannelDoubt::Unreadable) => {}
                    Refunded::Unknown(_) => unknown += 1,
                    Refunded::UnderWay { .. } | Refunded::Refused(_) => {}
                }
            }
        }
        Ok((found, unknown))
    }
}

/// Our number of a return; `None`: a taking.
fn return_of(line: &BillLine) -> Option<ReturnId> {
    let number = line.return_no.as_deref().filter(|_| line.kind == BillKind::Returned);
    number.and_then(ReturnId::parse)
}

/// A refund as a line of a bill has it.
fn line_of(payment: &RechargePayment, return_no: String, minor_units: i64) -> BillLine {
    BillLine {
        kind: BillKind::Returned,
        merchant_no: payment.merchant_no.clone(),
        trade_no: payment.trade_no.clone(),
        return_no: Some(return_no),
        channel_return_no: None,
        minor_units,
        currency: payment.currency.clone(),
        fee_parts: 0,
        fee_currency: payment.currency.clone(),
        at: payment.paid_at,
    }
}

/// Has a payment decided. `last`: each payment before it was. One that is HELD here is decided
/// again only if its money has moved on.
///
/// # Errors
/// A [`Rejection`]: the same command again.
pub(super) async fn told<T: Adapter, F: Adapter>(
    recharges: &Recharges<T, F>,
    reads: &Reads,
    lost: &Lost,
    (terms, facts, last): (&Arc<ChannelTerms>, &Facts, bool),
) -> Result<Option<PaymentAnswer>, Rejection> {
    let recorded = reads.channel_payment(&terms.name, &facts.trade_no).await;
    let recorded = recorded.map_err(|_| Rejection::of(Code::SystemError))?;
    let moved = |payment: &RechargePayment| {
        let returned = facts.returned != Returned::None;
        lost.has_credit(payment.id, payment.recharge)
            || returned && payment.cause != Some(HeldCause::PartReturned)
    };
    let matched = recorded.as_ref().filter(|payment| payment.recharge.is_some());
    match matched {
        None => recharges.told_in_turn(terms, facts, SeenBy::Query, last).await.map(Some),
        Some(payment) if moved(payment) => {
            recharges.rematched_in_turn(terms, facts, ACTOR, last).await.map(Some)
        }
        Some(_) => Ok(None),
    }
}

/// Has a return, or a taking, booked or found again. Returns whether it is.
///
/// # Errors
/// It is not known.
pub(super) async fn tell<T: Adapter, F: Adapter>(
    recharges: &Recharges<T, F>,
    terms: &Arc<ChannelTerms>,
    line: &BillLine,
) -> anyhow::Result<bool> {
    let number = match return_of(line) {
        Some(id) => id.to_string(),
        None => line.channel_return_no.clone().unwrap_or_default(),
    };
    let taking = Taking {
        merchant_no: Some(line.merchant_no.clone()).filter(|number| !number.is_empty()),
        trade_no: line.trade_no.clone(),
        number,
        minor_units: line.minor_units,
        currency: line.currency.clone(),
        at: line.at,
    };
    let told = match line.kind {
        BillKind::GivenBack => recharges.given_back_last(terms, &taking).await,
        _ => recharges.taken(terms, &taking).await,
    };
    let told = told.map_err(|why| refusal(&taking.number, &why))?;
    Ok(told.told == PaymentTold::Success)
}

/// A rejection in words.
pub(super) fn refusal(what: &str, why: &Rejection) -> anyhow::Error {
    let detail = why.detail.as_deref().unwrap_or_default();
    anyhow!("{what}: {} {detail}; the same command again", why.code.name())
}
