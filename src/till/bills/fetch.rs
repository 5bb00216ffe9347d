//! One try to fetch a bill. Its lines go to PostgreSQL in batches, as they come: memory holds a few
//! of these, however long the bill is.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::super::step::later;
use super::{Office, RETRY, RETRY_CAP};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::channels::BillAsk;
use crate::channels::open::OpenChannel;
use crate::crash;
use crate::postgres::Error;
use crate::postgres::bills::BillFees;
use crate::recharge::answers::{BillLine, BillSums, Billed, ChannelDoubt, whole_fees};
use crate::recharge::bill::{BillDays, ChannelBill};
use crate::recharge::movement;

/// Lines of one batch.
const BATCH: usize = 4_096;
/// So long behind its time a bill without a line is a bill, also if payments of its day are here.
const PATIENCE: Duration = Duration::from_hours(48);
/// Batches on their way to PostgreSQL.
const BATCHES: usize = 2;

impl<T: Adapter, F: Adapter> Office<T, F> {
    /// Fetches a bill, behind a durable try. It counts only if it is whole.
    pub(super) async fn fetch(
        &self,
        channel: &Arc<OpenChannel>,
        days: &BillDays,
        bill: ChannelBill,
    ) -> Result<(), Error> {
        let Some(span) = days.span(bill.day) else { return Ok(()) };
        let tries = u32::try_from(bill.tries).unwrap_or(u32::MAX);
        let tried = self.store.bill_tried(&bill, self.later_by(RETRY, tries, RETRY_CAP)).await?;
        let Some(bill) = tried else { return Ok(()) };
        while self.store.remove_lines(&bill.channel).await? {}
        // Later the comparison decides: the one payment of the day may be in no bill.
        let may_come = days.due(bill.day).is_some_and(|due| later(due, PATIENCE) > self.now());
        let has_trade = may_come && self.store.has_trade(&bill.channel, span).await?;
        let began_ns = self.clock.monotonic_ns();
        let billed = self.read_bill(channel, &bill, has_trade).await?;
        let billed = self.counted(channel, "bill", began_ns, billed);
        let why = match billed {
            Some(Billed::Whole(sums)) => return self.whole(channel, &bill, sums).await,
            Some(Billed::NoTrade) => {
                return self.whole(channel, &bill, BillSums::default()).await;
            }
            Some(Billed::NotYet) => "it is not made yet".to_owned(),
            Some(Billed::Unknown(doubt)) => doubt.to_string(),
            None => "the adapter broke".to_owned(),
        };
        warn!(channel = bill.channel, day = %bill.day, why, "no bill yet");
        self.store.bill_failed(&bill, &why).await?;
        if bill.run.is_none() {
            self.watch_late(days, &bill, &why);
        }
        Ok(())
    }

    /// Reads a bill to its end, and writes its lines. `None`: the adapter broke.
    ///
    /// The thread is one of its own: a stop of the process does not wait for a long bill.
    async fn read_bill(
        &self,
        channel: &Arc<OpenChannel>,
        bill: &ChannelBill,
        has_trade: bool,
    ) -> Result<Option<Billed>, Error> {
        let (batches, mut written) = mpsc::channel::<Vec<BillLine>>(BATCHES);
        let (answers, ended) = oneshot::channel();
        let (lent, day) = (Arc::clone(channel), bill.day);
        let work = move || {
            let mut batch = Vec::with_capacity(BATCH);
            let mut lines = |line: BillLine| {
                batch.push(line);
                if batch.len() == BATCH {
                    // Closed: PostgreSQL has failed, and the lines do not count.
                    let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                    drop(batches.blocking_send(full));
                }
            };
            let billed = lent.channel.bill(&BillAsk { day, has_trade }, &mut lines);
            if !batch.is_empty() {
                drop(batches.blocking_send(batch));
            }
            drop(batches);
            drop(answers.send(billed));
        };
        if let Err(error) = thread::Builder::new().name("bill".to_owned()).spawn(work) {
            let why = format!("no thread for it: {error}");
            return Ok(Some(Billed::Unknown(ChannelDoubt::Unanswered(why))));
        }
        let mut place = 0_i64;
        while let Some(batch) = written.recv().await {
            self.store.stage_lines(bill, place, &batch).await?;
            place += i64::try_from(batch.len()).unwrap_or(i64::MAX);
        }
        Ok(ended.await.ok())
    }

    /// Has the lines of a whole bill count, and books its fees.
    async fn whole(
        &self,
        channel: &OpenChannel,
        bill: &ChannelBill,
        sums: BillSums,
    ) -> Result<(), Error> {
        let (terms, name, day) = (&channel.terms, &bill.channel, bill.day);
        let own = whole_fees(self.store.own_fees(bill, &terms.currency).await?);
        let foreign = sums.fees.saturating_sub(own);
        let sums = BillSums { fees: own, ..sums };
        let precision = self.reads.catalog().precision(terms.asset);
        let amount = sums.fees.checked_abs().and_then(|fees| terms.amount(fees, precision));
        let key = movement::fees_key(name, day);
        let given_back = sums.fees < 0;
        let fees = BillFees { key, asset: terms.asset, amount, given_back, foreign };
        let booked = self.store.bill_whole(bill, sums, &fees, self.now()).await?;
        crash::point("bill_after_fetch");
        let Some(booked) = booked else { return Ok(()) };
        info!(channel = name, %day, lines = sums.lines, "a bill is here");
        let units = amount.map_or(0, |amount| i128::from(amount.units()));
        let units = if fees.given_back { -units } else { units };
        if units != booked || (amount.is_none() && sums.fees != 0) {
            let subject = format!("{name} {day} fees");
            let what = format_args!(
                "the bill of {day} of channel {name} has fees of {} minor units, and {booked} \
                 smallest units are booked",
                sums.fees
            );
            alert_about(Alert::BillMismatch, &subject, what);
        }
        Ok(())
    }
}
