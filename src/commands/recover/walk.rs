//! One walk through the bills and queries of a channel: the payments of ours that are lost here,
//! and the returns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use jiff::ToSpan;
use jiff::civil::Date;

use crate::channels::{BillAsk, Channel, OrderAsk};
use crate::postgres::reads::Reads;
use crate::postgres::recover::LostKey;
use crate::recharge::answers::{BillKind, BillLine, Billed, Queried};
use crate::recharge::facts::Facts;
use crate::recharge::movement;
use crate::recharge::payment::Disposition;
use crate::recharge::returned::ReturnKind;
use crate::recharge::terms::ChannelTerms;
use crate::recharge::{PaymentId, RechargeId, ReturnId};

/// The days and the keys to look for.
pub(super) struct Walk<'a> {
    /// Committed rows.
    pub(super) reads: &'a Reads,
    /// The first day.
    pub(super) since: Date,
    /// The last one.
    pub(super) until: Date,
    /// External operations without a movement.
    pub(super) lost: &'a [LostKey],
    /// Between two calls.
    pub(super) pause: Duration,
}

/// The words of one channel.
#[derive(Default)]
pub(super) struct Walked {
    /// Payments that are not recorded here, or are HELD.
    pub(super) paid: Vec<Facts>,
    /// Returns that carry our number, and takings that UBSCore's log has.
    pub(super) returns: Vec<BillLine>,
    /// Bills that are not made yet.
    pub(super) waits: Vec<String>,
    /// Calls without an end: the channel must be walked again.
    pub(super) unknown: Vec<String>,
}

impl Walk<'_> {
    /// Walks one channel.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub(super) async fn channel(
        &self,
        terms: &ChannelTerms,
        channel: &dyn Channel,
    ) -> anyhow::Result<Walked> {
        let mut walked = Walked::default();
        tokio::task::block_in_place(|| channel.renew());
        let mut asked = self.bills(terms, channel, &mut walked).await?;
        for number in self.lost_orders() {
            let order = match RechargeId::parse(&number) {
                Some(id) => self.reads.recharge(id).await.context("read an order")?,
                None => None,
            };
            if order.is_none_or(|order| order.channel == terms.name) {
                asked.entry(number).or_default();
            }
        }
        for (number, references) in asked {
            let references: Vec<String> = references.into_iter().collect();
            let ask = OrderAsk { merchant_no: &number, references: &references };
            let queried = self.paced(|| channel.query(&ask));
            match queried {
                Queried::Paid(mut paid) => {
                    Facts::in_turn(&mut paid);
                    walked.paid.extend(paid);
                }
                Queried::Unknown(why) => walked.unknown.push(format!(
                    "channel {}: the query of {number} has no end: {why}",
                    terms.name
                )),
                Queried::Open | Queried::Closed | Queried::Absent => {}
            }
        }
        let mut paid = Vec::with_capacity(walked.paid.len());
        for facts in std::mem::take(&mut walked.paid) {
            if self.is_open(&terms.name, &facts.trade_no).await? {
                paid.push(facts);
            }
        }
        Ok(Walked { paid, ..walked })
    }

    /// Reads the bills. Returns the orders to ask about, each with the channel's numbers.
    async fn bills(
        &self,
        terms: &ChannelTerms,
        channel: &dyn Channel,
        walked: &mut Walked,
    ) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
        let name = &terms.name;
        let mut asked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut day = self.since;
        while day <= self.until {
            let mut ours = Vec::new();
            let ask = BillAsk { day, has_trade: false };
            let billed = self.paced(|| {
                channel.bill(&ask, &mut |line| {
                    if self.is_ours(name, &line) {
                        ours.push(line);
                    }
                })
            });
            match billed {
                Billed::Whole(_) => {}
                Billed::NoTrade => ours.clear(),
                Billed::NotYet => {
                    ours.clear();
                    walked.waits.push(format!("channel {name}: the bill of {day}"));
                }
                Billed::Unknown(why) => {
                    ours.clear();
                    let what = format!("channel {name}: the bill of {day} has no end: {why}");
                    walked.unknown.push(what);
                }
            }
            for line in ours {
                if line.kind != BillKind::Paid {
                    walked.returns.push(line);
                } else if self.is_open(name, &line.trade_no).await? {
                    asked.entry(line.merchant_no).or_default().insert(line.trade_no);
                }
            }
            day = day.checked_add(1.day()).context("the days end")?;
        }
        Ok(asked)
    }

    /// Whether a line of a bill is about a payment or a return of ours.
    fn is_ours(&self, channel: &str, line: &BillLine) -> bool {
        match line.kind {
            BillKind::Paid => RechargeId::parse(&line.merchant_no).is_some(),
            BillKind::Returned => line.return_no.as_deref().and_then(ReturnId::parse).is_some(),
            BillKind::Taken | BillKind::GivenBack => {
                let Some(number) = &line.channel_return_no else { return false };
                let kind = match line.kind {
                    BillKind::Taken => ReturnKind::Taken,
                    _ => ReturnKind::GivenBack,
                };
                let payment = PaymentId::of(channel, &line.trade_no);
                let key = movement::return_key(ReturnId::of(payment, kind, number));
                self.lost.iter().any(|lost| lost.key == key)
            }
            BillKind::Undone | BillKind::Other => false,
        }
    }

    /// The merchant numbers of the orders that UBSCore's log has a credit of.
    fn lost_orders(&self) -> BTreeSet<String> {
        let number = |lost: &LostKey| {
            let ulid = lost.key.strip_prefix("recharge/")?.strip_suffix("/credit")?;
            Some(format!("{}{ulid}", RechargeId::PREFIX))
        };
        self.lost.iter().filter_map(number).collect()
    }

    /// Whether a payment is not recorded here, or is HELD.
    async fn is_open(&self, channel: &str, trade_no: &str) -> anyhow::Result<bool> {
        let recorded = self.reads.channel_payment(channel, trade_no).await;
        let recorded = recorded.context("read a payment")?;
        Ok(recorded.is_none_or(|payment| payment.disposition == Disposition::Held))
    }

    /// One call of a channel, behind a pause.
    pub(super) fn paced<R>(&self, call: impl FnOnce() -> R) -> R {
        tokio::task::block_in_place(|| {
            std::thread::sleep(self.pause);
            call()
        })
    }
}
