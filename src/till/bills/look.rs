//! One comparison of a good bill with the rows here, and the repair of what differs.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use super::super::step::later;
use super::{COMPARE_CAP, Office, RETRY};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::channels::open::OpenChannel;
use crate::channels::{OrderAsk, RefundAsk};
use crate::coordinator::Rejection;
use crate::crash;
use crate::postgres::Error;
use crate::recharge::ReturnId;
use crate::recharge::answers::{Queried, Refunded};
use crate::recharge::bill::{BillDays, BillDifference, BillFinding, ChannelBill, FindingKind};
use crate::recharge::decide::{PaymentDecision, PaymentTold};
use crate::recharge::facts::{Facts, Returned, Taking};
use crate::recharge::payment::SeenBy;
use crate::recharge::returned::ReturnKind;
use domain::code::Code;

/// The author of dismissals that follow from the word of the channel.
const BILL: &str = "bill";
/// The most findings that one look asks the channel about; the next look goes on.
const WORK_MAX: usize = 500;
/// The first pause behind a comparison that has no end. It doubles.
const LOOK_RETRY: Duration = Duration::from_secs(2);
/// A return that is in no bill so long behind its day needs a person.
const RETURN_PATIENCE: Duration = Duration::from_hours(48);
/// Any other finding that waits for so long does.
const PATIENCE: Duration = Duration::from_hours(24);
/// The kinds of lines, as `channel_bill_lines` has them.
const TAKEN_LINE: i16 = 3;
const GIVEN_BACK_LINE: i16 = 4;

/// The end of one step about a finding.
enum Word {
    /// It is booked: the next comparison does not show it.
    Booked,
    /// Another deployment's: nothing here has to know it.
    Foreign,
    /// Not known yet.
    Waits(String),
    /// A person must look.
    Wrong(String),
}

impl<T: Adapter, F: Adapter> Office<T, F> {
    /// Compares a bill, repairs differences that the channel confirms, and compares again. Returns
    /// whether the day is clean.
    pub(super) async fn look(
        &self,
        channel: &Arc<OpenChannel>,
        days: &BillDays,
        bill: ChannelBill,
    ) -> Result<bool, Error> {
        let Some(span) = days.span(bill.day) else { return Ok(false) };
        let mut began = self.now();
        let next_at = self.later_by(LOOK_RETRY, bill.looks, COMPARE_CAP);
        let Some(bill) = self.store.bill_looking(&bill, next_at).await? else { return Ok(false) };
        let of = (bill.channel.as_str(), bill.day);
        let mut compared = self.store.compare_bill(of, span).await?;
        let mut open = self.store.record_findings(&bill, &compared, self.now()).await?;
        let (mut changed, more) = (false, compared.more || open.len() > WORK_MAX);
        let mut asked = 0;
        for finding in &open {
            if self.is_quiet() {
                return Ok(false);
            }
            if finding.difference.kind.asks() {
                asked += 1;
                if asked > WORK_MAX {
                    continue;
                }
            }
            changed |= self.work_on(channel, span.1, finding).await?;
        }
        if changed {
            began = self.now();
            compared = self.store.compare_bill(of, span).await?;
            open = self.store.record_findings(&bill, &compared, self.now()).await?;
        }
        let next_at = match changed && more {
            true => self.now(),
            false => self.later_by(RETRY, bill.looks.saturating_sub(1), COMPARE_CAP),
        };
        let clean = self.store.bill_looked(&bill, &compared, (began, next_at)).await?;
        let (name, day, open) = (&bill.channel, bill.day, open.len());
        info!(channel = name, %day, open, clean, "a bill is compared");
        Ok(clean)
    }

    /// Works on a finding. Returns whether another comparison may not show it any more.
    async fn work_on(
        &self,
        channel: &Arc<OpenChannel>,
        day_end: Timestamp,
        finding: &BillFinding,
    ) -> Result<bool, Error> {
        let one = &finding.difference;
        let word = match one.kind {
            FindingKind::MissingHere => self.missing_here(channel, one).await,
            FindingKind::ReturnMissingHere => self.return_missing_here(channel, one).await,
            FindingKind::ReturnMissingThere => self.return_missing_there(channel, one).await,
            FindingKind::Undone => {
                Word::Wrong("it has failed at the channel behind its success".to_owned())
            }
            FindingKind::MissingThere => Word::Wrong("it is in no bill of its channel".to_owned()),
            FindingKind::AmountDiffers => {
                let amount = |units: Option<i64>| units.map_or("none".into(), |u| u.to_string());
                let (there, here) = (amount(one.there), amount(one.here));
                Word::Wrong(format!("the bill has {there} minor units, and {here} are here"))
            }
        };
        let word = match word {
            Word::Waits(why) if until(finding, day_end) <= self.now() => Word::Wrong(why),
            word => word,
        };
        match word {
            Word::Booked => {
                crash::point("bill_after_apply");
                let BillFinding { channel, day, .. } = finding;
                let (kind, reference) = (one.kind.name(), &one.reference);
                warn!(channel, %day, kind, reference, "a finding of a bill is repaired");
                Ok(true)
            }
            Word::Foreign => {
                let why = "the payment is of another deployment";
                self.store.dismiss_finding(finding.id, (BILL, why), self.now()).await?;
                Ok(true)
            }
            Word::Waits(why) => {
                self.store.note_finding(finding.id, &why, self.now()).await?;
                Ok(false)
            }
            Word::Wrong(why) => {
                self.store.note_finding(finding.id, &why, self.now()).await?;
                mismatch(finding, &why);
                Ok(false)
            }
        }
    }

    /// Asks the channel for a payment that the bill alone has, and has it decided as the query
    /// would have done.
    async fn missing_here(&self, channel: &Arc<OpenChannel>, one: &BillDifference) -> Word {
        let payments = match self.query(channel, one).await {
            Ok(payments) => payments,
            Err(word) => return word,
        };
        let mut word = Word::Wrong("the channel does not report the payment now".to_owned());
        for facts in &payments {
            let answer = self.recharges.told(&channel.terms, facts, SeenBy::Bill).await;
            if facts.trade_no != one.trade_no {
                continue;
            }
            word = match answer {
                Ok(answer) if answer.decision == PaymentDecision::Foreign => Word::Foreign,
                Ok(_) => Word::Booked,
                Err(rejection) => waits(&rejection),
            };
        }
        word
    }

    /// Asks the channel for the payments of an order.
    async fn query(
        &self,
        channel: &Arc<OpenChannel>,
        one: &BillDifference,
    ) -> Result<Vec<Facts>, Word> {
        let (no, references) = (one.merchant_no.clone(), vec![one.trade_no.clone()]);
        let queried = self.call(channel, "query", move |channel| {
            channel.query(&OrderAsk { merchant_no: &no, references: &references })
        });
        match queried.await {
            Some(Queried::Paid(mut payments)) => {
                Facts::in_turn(&mut payments);
                Ok(payments)
            }
            Some(Queried::Unknown(doubt)) => Err(Word::Waits(doubt.to_string())),
            None => Err(Word::Waits("the adapter broke".to_owned())),
            Some(Queried::Open | Queried::Closed | Queried::Absent) => {
                Err(Word::Wrong("the channel says that the order is not paid".to_owned()))
            }
        }
    }

    /// Books a return that the bill alone has, once the channel confirms it. One with our number is
    /// that return.
    async fn return_missing_here(&self, channel: &Arc<OpenChannel>, one: &BillDifference) -> Word {
        let ours = one.return_no.as_deref().filter(|no| ReturnId::parse(no).is_some());
        let number = ours.or(one.channel_return_no.as_deref());
        let (Some(number), Some(minor_units)) = (number, one.there.filter(|units| *units > 0))
        else {
            return Word::Wrong("the line has no number or no amount".to_owned());
        };
        let confirmed = match (one.line_kind, &one.return_no) {
            // The channel reports these by callbacks and bills alone.
            (Some(TAKEN_LINE | GIVEN_BACK_LINE), _) => Ok(()),
            (_, Some(return_no)) => self.refund_is_done(channel, one, return_no).await,
            (_, None) => self.is_returned(channel, one).await,
        };
        if let Err(word) = confirmed {
            return word;
        }
        if let Some(word) = self.taken_before(channel, one, minor_units).await {
            return word;
        }
        let taking = Taking {
            merchant_no: Some(one.merchant_no.clone()),
            trade_no: one.trade_no.clone(),
            number: number.to_owned(),
            minor_units,
            currency: one.currency.clone(),
            at: self.now(),
        };
        let booked = match one.line_kind {
            Some(GIVEN_BACK_LINE) => self.recharges.given_back(&channel.terms, &taking).await,
            _ => self.recharges.taken_by_bill(&channel.terms, &taking).await,
        };
        match booked {
            Err(rejection) if rejection.code == Code::NotReturnable => {
                Word::Waits("a refund of the payment is under way".to_owned())
            }
            Err(rejection) => waits(&rejection),
            Ok(answer) => match answer.told {
                PaymentTold::Success => {
                    let is_taken = answer.row.is_some_and(|row| row.kind == ReturnKind::Taken);
                    if ours.is_some() && is_taken {
                        let why = "the channel has carried out a return that has failed here";
                        mismatch_about(&channel.terms.name, number, why);
                    }
                    Word::Booked
                }
                PaymentTold::NotFound => Word::Waits("its taking is not here yet".to_owned()),
                PaymentTold::Conflict => Word::Wrong("it contradicts what is here".to_owned()),
            },
        }
    }

    /// The word if a taking of this amount stands under a number that no bill has.
    async fn taken_before(
        &self,
        channel: &OpenChannel,
        one: &BillDifference,
        minor_units: i64,
    ) -> Option<Word> {
        if one.line_kind == Some(GIVEN_BACK_LINE) {
            return None;
        }
        let (name, trade_no) = (&channel.terms.name, &one.trade_no);
        match self.store.unbilled_taking(name, trade_no, minor_units).await {
            Ok(number) => number.map(|number| {
                Word::Wrong(format!(
                    "a taking of this amount is booked under {number}, which no bill has: dismiss \
                     the finding if it is the same"
                ))
            }),
            Err(failure) => Some(Word::Waits(failure.to_string())),
        }
    }

    /// Whether the channel says that a refund of this number is done.
    async fn refund_is_done(
        &self,
        channel: &Arc<OpenChannel>,
        one: &BillDifference,
        return_no: &str,
    ) -> Result<(), Word> {
        match self.query_refund(channel, one, return_no).await {
            Some(Refunded::Done) => Ok(()),
            Some(Refunded::UnderWay { .. }) => Err(Word::Waits("it is under way".to_owned())),
            Some(Refunded::Refused(code)) => {
                Err(Word::Wrong(format!("the channel says that nothing has gone back: {code}")))
            }
            Some(Refunded::Unknown(doubt)) => Err(Word::Waits(doubt.to_string())),
            None => Err(Word::Waits("the adapter broke".to_owned())),
        }
    }

    async fn query_refund(
        &self,
        channel: &Arc<OpenChannel>,
        one: &BillDifference,
        return_no: &str,
    ) -> Option<Refunded> {
        let (no, trade_no) = (one.merchant_no.clone(), one.trade_no.clone());
        let (return_no, currency) = (return_no.to_owned(), one.currency.clone());
        let minor_units = one.there.or(one.here).unwrap_or(0);
        let asked = self.call(channel, "query_refund", move |channel| {
            channel.query_refund(&RefundAsk {
                return_no: &return_no,
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units,
                total_minor_units: minor_units,
                currency: &currency,
            })
        });
        asked.await
    }

    /// Whether the channel says that money of the payment has gone back: a refund that was made
    /// there has no number of ours to ask for.
    async fn is_returned(
        &self,
        channel: &Arc<OpenChannel>,
        one: &BillDifference,
    ) -> Result<(), Word> {
        let payments = self.query(channel, one).await?;
        let gone = payments
            .iter()
            .any(|facts| facts.trade_no == one.trade_no && facts.returned != Returned::None);
        match gone {
            true => Ok(()),
            false => Err(Word::Wrong("the channel says that nothing has gone back".to_owned())),
        }
    }

    /// Asks for a return that is in no bill.
    async fn return_missing_there(&self, channel: &Arc<OpenChannel>, one: &BillDifference) -> Word {
        let Some(return_no) = &one.return_no else {
            return Word::Waits("it is in no bill, and the channel has reported it".to_owned());
        };
        match self.query_refund(channel, one, return_no).await {
            Some(Refunded::Done) => {
                Word::Waits("it is in no bill, and the channel says that it is done".to_owned())
            }
            Some(Refunded::Refused(code)) => {
                Word::Wrong(format!("the channel says that nothing has gone back: {code}"))
            }
            Some(Refunded::UnderWay { .. }) => Word::Waits("it is under way".to_owned()),
            Some(Refunded::Unknown(doubt)) => Word::Waits(doubt.to_string()),
            None => Word::Waits("the adapter broke".to_owned()),
        }
    }
}

/// How long a finding may wait: then a person must look.
fn until(finding: &BillFinding, day_end: Timestamp) -> Timestamp {
    match finding.difference.kind {
        FindingKind::ReturnMissingThere => later(day_end, RETURN_PATIENCE),
        _ => later(finding.found_at, PATIENCE),
    }
}

fn waits(rejection: &Rejection) -> Word {
    Word::Waits(format!("it is not booked yet: {}", rejection.code.name()))
}

/// Raises the alert about a finding.
fn mismatch(finding: &BillFinding, why: &str) {
    let BillFinding { channel, day, difference, .. } = finding;
    let (kind, reference) = (difference.kind.name(), &difference.reference);
    let what = format_args!("{kind} {reference} in the bill of {day} of channel {channel}: {why}");
    alert_about(Alert::BillMismatch, &format_args!("{channel} {kind} {reference}"), what);
}

fn mismatch_about(channel: &str, number: &str, why: &str) {
    let what = format_args!("return {number} in a bill of channel {channel}: {why}");
    alert_about(Alert::BillMismatch, &format_args!("{channel} {number}"), what);
}
