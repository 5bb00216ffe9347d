//! The differences between bills and the rows here: one comparison, and the findings behind it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{BillStore, COLUMNS as BILL_COLUMNS, bill_from_row};
use crate::postgres::{Error, admin};
use crate::recharge::bill::{BillDifference, BillFinding, ChannelBill, FindingKind, FindingState};

/// The columns that [`finding_from_row`] reads, in its order.
const COLUMNS: &str = "finding_id, channel, day, state, found_at, updated_at, actor, reason, what, \
                       kind, line_kind, reference, trade_no, merchant_no, return_no, \
                       channel_return_no, currency, there, here";
/// Where the columns of the difference begin.
const DIFFERENCE: usize = 9;
/// The most differences of one bill. With more, none is taken for done.
const DIFFERENCES_MAX: usize = 10_000;
/// The most findings of one answer.
const SHOWN_MAX: i64 = 1_000;
/// A comparison reads up to three days of lines. It holds no lock.
const COMPARE_TIMEOUT: &str = "SET LOCAL statement_timeout = '30min'";

/// Which findings.
#[derive(Clone, Debug, Default)]
pub struct FindingSearch {
    /// Of this channel.
    pub channel: Option<String>,
    /// In this state.
    pub state: Option<FindingState>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct BillCompared {
    /// Each difference once.
    pub differences: Vec<BillDifference>,
    /// Lines of other users of the merchant account.
    pub foreign: i64,
    /// There are more differences.
    pub more: bool,
}

impl BillStore {
    /// Compares a good bill with the rows here. Dismissed differences are left out. `span`: the
    /// day. It writes nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn compare_bill(
        &self,
        of: (&str, Date),
        span: (Timestamp, Timestamp),
    ) -> Result<BillCompared, Error> {
        // Those of other channels and of plans end first.
        let _one = self.comparing.acquire().await.expect("it is never closed");
        self.compare(of, span).await
    }

    /// The same at once; `None`: another comparison runs.
    ///
    /// # Errors
    /// As [`BillStore::compare_bill`].
    pub async fn try_compare_bill(
        &self,
        of: (&str, Date),
        span: (Timestamp, Timestamp),
    ) -> Result<Option<BillCompared>, Error> {
        let Ok(_one) = self.comparing.try_acquire() else { return Ok(None) };
        self.compare(of, span).await.map(Some)
    }

    async fn compare(
        &self,
        (channel, day): (&str, Date),
        (from, to): (Timestamp, Timestamp),
    ) -> Result<BillCompared, Error> {
        let differences = "SELECT kind, line_kind, reference, trade_no, merchant_no, return_no, \
                                  channel_return_no, currency, there, here \
                             FROM bill_differences($1, $2, $3, $4) d \
                            WHERE NOT EXISTS (SELECT FROM bill_findings f \
                                    WHERE (f.channel, f.day) = ($1, $2) AND f.state = -40 \
                                      AND (f.kind, f.reference) = (d.kind, d.reference)) \
                            ORDER BY kind, reference LIMIT $5";
        let foreign = "SELECT count(*) FROM bill_lines_near($1, $2) l \
                        WHERE l.day = $2 AND NOT l.marked AND l.kind <> 5 \
                          AND NOT EXISTS (SELECT FROM channel_payments p \
                                WHERE (p.channel, p.trade_no) = ($1::text, l.trade_no))";
        let most = i64::try_from(DIFFERENCES_MAX + 1).unwrap_or(i64::MAX);
        // Not one of the pool: callbacks need those.
        let mut client = self.reads.pool.own().await?;
        let transaction = client.transaction().await?;
        transaction.batch_execute(COMPARE_TIMEOUT).await?;
        let values: &[&(dyn ToSql + Sync)] = &[&channel, &day, &from, &to, &most];
        let rows = transaction.query(differences, values).await?;
        let foreign = transaction.query_one(foreign, &[&channel, &day]).await?.try_get(0)?;
        transaction.commit().await?;
        self.reads.pool.note(&client).await?;
        let more = rows.len() > DIFFERENCES_MAX;
        // Two lines of one number are one difference.
        let mut found = BTreeMap::new();
        for row in rows.iter().take(DIFFERENCES_MAX) {
            let one = difference_from_row(row, 0)?;
            found.entry((one.kind, one.reference.clone())).or_insert(one);
        }
        Ok(BillCompared { differences: found.into_values().collect(), foreign, more })
    }

    /// The number of a taking of a payment, of this amount, that no line of a good bill has: an
    /// operator may have booked it by another number.
    ///
    /// # Errors
    /// As [`BillStore::compare_bill`].
    pub async fn unbilled_taking(
        &self,
        channel: &str,
        trade_no: &str,
        minor_units: i64,
    ) -> Result<Option<String>, Error> {
        let taking = "SELECT r.channel_return_no \
                        FROM recharge_returns r JOIN channel_payments p USING (payment_id) \
                       WHERE (p.channel, p.trade_no) = ($1, $2) \
                         AND (r.kind, r.state, r.minor_units) = (2, 40, $3) \
                         AND NOT EXISTS (SELECT FROM channel_bill_lines l \
                               JOIN channel_bills b \
                                 ON (b.channel, b.day, b.run) = (l.channel, l.day, l.run) \
                              WHERE (l.channel, l.trade_no) = ($1, $2) AND l.kind IN (2, 3, 4) \
                                AND r.channel_return_no IN (l.return_no, l.channel_return_no)) \
                       LIMIT 1";
        let rows = self.query(taking, &[&channel, &trade_no, &minor_units]).await?;
        rows.first().map_or(Ok(None), |row| Ok(row.try_get(0)?))
    }

    /// Writes the findings of a comparison: new ones are open, and those that the data do not show
    /// any more are done. One that is dismissed stays so. Returns those that are open, first
    /// those that no look has reached for the longest.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn record_findings(
        &self,
        bill: &ChannelBill,
        compared: &BillCompared,
        now: Timestamp,
    ) -> Result<Vec<BillFinding>, Error> {
        let insert = "INSERT INTO bill_findings AS f (channel, day, kind, line_kind, reference, \
                        trade_no, merchant_no, return_no, channel_return_no, currency, there, \
                        here, state, found_at, updated_at) \
                      SELECT $1, $2::date, d.*, 10, $3::timestamptz, $3 \
                        FROM unnest($4::smallint[], $5::smallint[], $6::text[], $7::text[], \
                               $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], \
                               $13::bigint[]) AS d \
                      ON CONFLICT (channel, day, kind, reference) DO UPDATE \
                         SET state = 10, updated_at = $3, there = EXCLUDED.there, \
                             here = EXCLUDED.here, line_kind = EXCLUDED.line_kind, \
                             return_no = EXCLUDED.return_no, \
                             channel_return_no = EXCLUDED.channel_return_no \
                       WHERE f.state <> -40 AND (f.state, f.there, f.here) IS DISTINCT FROM \
                             (10, EXCLUDED.there, EXCLUDED.here)";
        let done = "UPDATE bill_findings SET state = 40, updated_at = $3 \
                     WHERE channel = $1 AND day = $2 AND state = 10 \
                       AND (kind, reference) NOT IN \
                           (SELECT * FROM unnest($4::smallint[], $5::text[]))";
        let open = format!(
            "SELECT {COLUMNS} FROM bill_findings \
              WHERE channel = $1 AND day = $2 AND state = 10 \
              ORDER BY updated_at, kind, reference"
        );
        let columns = DifferenceColumns::of(&compared.differences);
        let more = compared.more;
        self.fenced(async |transaction| {
            let (channel, day, d) = (&bill.channel, &bill.day, &columns);
            let values: &[&(dyn ToSql + Sync)] = &[
                channel,
                day,
                &now,
                &d.kind,
                &d.line_kind,
                &d.reference,
                &d.trade_no,
                &d.merchant_no,
                &d.return_no,
                &d.channel_return_no,
                &d.currency,
                &d.there,
                &d.here,
            ];
            transaction.execute(insert, values).await?;
            if !more {
                let values: &[&(dyn ToSql + Sync)] = &[channel, day, &now, &d.kind, &d.reference];
                transaction.execute(done, values).await?;
            }
            let rows = transaction.query(&open, &[channel, day]).await?;
            rows.iter().map(finding_from_row).collect()
        })
        .await
    }

    /// Writes down the word of the channel about an open finding, and that a look has reached it.
    ///
    /// # Errors
    /// As [`BillStore::record_findings`].
    pub async fn note_finding(&self, id: i64, what: &str, now: Timestamp) -> Result<(), Error> {
        let note = "UPDATE bill_findings SET what = $2, updated_at = $3 \
                     WHERE finding_id = $1 AND state = 10";
        self.fenced(async |transaction| {
            transaction.execute(note, &[&id, &what, &now]).await?;
            Ok(())
        })
        .await
    }

    /// Writes down a look at a bill, before its comparison: one that fails each time must not keep
    /// the others from theirs. `None`: the row has changed meanwhile.
    ///
    /// # Errors
    /// As [`BillStore::record_findings`].
    pub async fn bill_looking(
        &self,
        bill: &ChannelBill,
        next_at: Timestamp,
    ) -> Result<Option<ChannelBill>, Error> {
        let looking = format!(
            "UPDATE channel_bills SET looks = looks + 1, next_at = $4 \
              WHERE channel = $1 AND day = $2 AND run = $3 AND state <> 0 AND NOT again \
              RETURNING {BILL_COLUMNS}"
        );
        self.fenced(async |transaction| {
            let values: &[&(dyn ToSql + Sync)] = &[&bill.channel, &bill.day, &bill.run, &next_at];
            transaction.query_opt(&looking, values).await?.as_ref().map(bill_from_row).transpose()
        })
        .await
    }

    /// Sets the end of a look at a bill. `began`: when its comparison began. Without a difference
    /// it is not due again, and with a good bill of the next day it is clean, once no bill beside it
    /// waits for its lines. Returns whether it is clean.
    ///
    /// # Errors
    /// As [`BillStore::record_findings`].
    pub async fn bill_looked(
        &self,
        bill: &ChannelBill,
        compared: &BillCompared,
        (began, next_at): (Timestamp, Timestamp),
    ) -> Result<bool, Error> {
        let looked = "WITH found AS (SELECT \
                NOT $6::bool AND NOT EXISTS (SELECT FROM bill_findings \
                             WHERE channel = $1 AND day = $2 AND state = 10) AS none, \
                EXISTS (SELECT FROM channel_bills WHERE channel = $1 AND day = $2::date + 1 \
                           AND run IS NOT NULL) \
                AND NOT EXISTS (SELECT FROM channel_bills WHERE channel = $1 \
                           AND day BETWEEN $2::date - 1 AND $2::date + 1 AND again AND purged) \
                AS next) \
              UPDATE channel_bills b SET foreign_lines = $4, compared_at = $7, \
                     state = CASE WHEN none AND next THEN 40 ELSE 10 END, \
                     next_at = CASE WHEN none THEN NULL ELSE $5::timestamptz END \
                FROM found WHERE b.channel = $1 AND b.day = $2 AND b.run = $3 \
                 AND b.state = 10 AND NOT b.again \
              RETURNING b.state = 40";
        let BillCompared { foreign, more, .. } = compared;
        self.fenced(async |transaction| {
            let values: &[&(dyn ToSql + Sync)] =
                &[&bill.channel, &bill.day, &bill.run, foreign, &next_at, more, &began];
            let row = transaction.query_opt(looked, values).await?;
            row.map_or(Ok(false), |row| Ok(row.try_get(0)?))
        })
        .await
    }

    /// The clean days of a channel with payments of the last days that are newer than the last
    /// comparison. `offset`: the channel's from UTC, seconds.
    ///
    /// # Errors
    /// As [`BillStore::bill_findings`].
    pub async fn days_of_late_payments(
        &self,
        channel: &str,
        offset: i32,
        now: Timestamp,
    ) -> Result<Vec<Date>, Error> {
        let late = "SELECT DISTINCT b.day FROM channel_payments p JOIN channel_bills b \
                        ON b.day = (p.paid_at AT TIME ZONE 'UTC' \
                                    + make_interval(secs => $2::int))::date \
                     WHERE p.channel = $1 AND p.updated_at >= $3::timestamptz - INTERVAL '8 days' \
                       AND p.disposition <> -40 \
                       AND b.channel = $1 AND b.state = 40 AND p.at >= b.compared_at";
        let rows = self.query(late, &[&channel, &offset, &now]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Has clean bills compared again. One that has lost its lines is fetched anew, and so is one
    /// beside it.
    ///
    /// # Errors
    /// As [`BillStore::record_findings`].
    pub async fn open_again(
        &self,
        channel: &str,
        days: &[Date],
        now: Timestamp,
    ) -> Result<(), Error> {
        let open = "UPDATE channel_bills SET state = 10, again = again OR purged, next_at = $3 \
                     WHERE channel = $1 AND day = ANY ($2) AND state = 40";
        let beside = "UPDATE channel_bills b SET again = TRUE, next_at = $3 \
                       WHERE channel = $1 AND purged AND NOT again \
                         AND EXISTS (SELECT FROM unnest($2::date[]) AS d \
                                      WHERE b.day BETWEEN d - 1 AND d + 1)";
        self.fenced(async |transaction| {
            transaction.execute(open, &[&channel, &days, &now]).await?;
            transaction.execute(beside, &[&channel, &days, &now]).await?;
            Ok(())
        })
        .await
    }

    /// Dismisses an open finding, with its audit row if an operator does. Its bill is looked at
    /// once more. Returns the finding as it stands then; `None`: there is none.
    ///
    /// # Errors
    /// As [`BillStore::record_findings`].
    pub async fn dismiss_finding(
        &self,
        id: i64,
        (actor, reason): (&str, &str),
        now: Timestamp,
    ) -> Result<Option<BillFinding>, Error> {
        let dismiss = "UPDATE bill_findings SET state = -40, actor = $2, reason = $3, \
                              updated_at = $4 \
                        WHERE finding_id = $1 AND state = 10";
        let due = "UPDATE channel_bills b SET next_at = $2 FROM bill_findings f \
                    WHERE f.finding_id = $1 AND (b.channel, b.day) = (f.channel, f.day) \
                      AND b.state = 10";
        let stands = format!("SELECT {COLUMNS} FROM bill_findings WHERE finding_id = $1");
        self.fenced(async |transaction| {
            let changed = transaction.execute(dismiss, &[&id, &actor, &reason, &now]).await?;
            let row = transaction.query_opt(&stands, &[&id]).await?;
            let finding = row.as_ref().map(finding_from_row).transpose()?;
            if let (1, Some(finding)) = (changed, &finding) {
                transaction.execute(due, &[&id, &now]).await?;
                let BillFinding { channel, day, difference, .. } = finding;
                let detail =
                    format!("{channel} {day} {} {}", difference.kind.name(), difference.reference);
                let (action, subject) = ("bill finding dismiss", id.to_string());
                admin::audit(transaction, actor, action, &subject, &detail, reason).await?;
            }
            Ok(finding)
        })
        .await
    }

    /// Findings, the newest first.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn bill_findings(&self, search: &FindingSearch) -> Result<Vec<BillFinding>, Error> {
        // As a literal, so that the partial index of open ones serves.
        let state = match search.state {
            Some(state) => format!("state = {}", state.number()),
            None => "TRUE".to_owned(),
        };
        let found = format!(
            "SELECT {COLUMNS} FROM bill_findings \
              WHERE ($1::text IS NULL OR channel = $1) AND {state} \
              ORDER BY finding_id DESC LIMIT $2"
        );
        let rows = self.query(&found, &[&search.channel, &SHOWN_MAX]).await?;
        rows.iter().map(finding_from_row).collect()
    }

    /// The open findings of a channel by kind, and the last day with a good bill.
    ///
    /// # Errors
    /// As [`BillStore::bill_findings`].
    pub async fn bill_backlog(
        &self,
        channel: &str,
    ) -> Result<(Vec<(FindingKind, u64)>, Option<Date>), Error> {
        let open = "SELECT kind, count(*) FROM bill_findings \
                     WHERE channel = $1 AND state = 10 GROUP BY kind";
        let last = "SELECT max(day) FROM channel_bills WHERE channel = $1 AND run IS NOT NULL";
        let mut counts = Vec::new();
        for row in self.query(open, &[&channel]).await? {
            let (number, count): (i16, i64) = (row.try_get(0)?, row.try_get(1)?);
            if let Some(kind) = FindingKind::from_number(number) {
                counts.push((kind, u64::try_from(count).unwrap_or(0)));
            }
        }
        let last = self.query(last, &[&channel]).await?;
        let last = last.first().map_or(Ok(None), |row| row.try_get(0))?;
        Ok((counts, last))
    }
}

/// Differences by column.
#[derive(Default)]
struct DifferenceColumns<'a> {
    kind: Vec<i16>,
    line_kind: Vec<Option<i16>>,
    reference: Vec<&'a str>,
    trade_no: Vec<&'a str>,
    merchant_no: Vec<&'a str>,
    return_no: Vec<Option<&'a str>>,
    channel_return_no: Vec<Option<&'a str>>,
    currency: Vec<&'a str>,
    there: Vec<Option<i64>>,
    here: Vec<Option<i64>>,
}

impl<'a> DifferenceColumns<'a> {
    fn of(differences: &'a [BillDifference]) -> DifferenceColumns<'a> {
        let mut columns = DifferenceColumns::default();
        for one in differences {
            columns.kind.push(one.kind.number());
            columns.line_kind.push(one.line_kind);
            columns.reference.push(&one.reference);
            columns.trade_no.push(&one.trade_no);
            columns.merchant_no.push(&one.merchant_no);
            columns.return_no.push(one.return_no.as_deref());
            columns.channel_return_no.push(one.channel_return_no.as_deref());
            columns.currency.push(&one.currency);
            columns.there.push(one.there);
            columns.here.push(one.here);
        }
        columns
    }
}

/// A difference, from the column on.
fn difference_from_row(row: &Row, from: usize) -> Result<BillDifference, Error> {
    let number: i16 = row.try_get(from)?;
    let kind = FindingKind::from_number(number);
    let bad = || Error::Row { table: "bill_findings", what: format!("kind {number}") };
    Ok(BillDifference {
        kind: kind.ok_or_else(bad)?,
        line_kind: row.try_get(from + 1)?,
        reference: row.try_get(from + 2)?,
        trade_no: row.try_get(from + 3)?,
        merchant_no: row.try_get(from + 4)?,
        return_no: row.try_get(from + 5)?,
        channel_return_no: row.try_get(from + 6)?,
        currency: row.try_get(from + 7)?,
        there: row.try_get(from + 8)?,
        here: row.try_get(from + 9)?,
    })
}

fn finding_from_row(row: &Row) -> Result<BillFinding, Error> {
    let number: i16 = row.try_get(3)?;
    let state = FindingState::from_number(number);
    let bad = || Error::Row { table: "bill_findings", what: format!("state {number}") };
    Ok(BillFinding {
        id: row.try_get(0)?,
        channel: row.try_get(1)?,
        day: row.try_get(2)?,
        difference: difference_from_row(row, DIFFERENCE)?,
        state: state.ok_or_else(bad)?,
        found_at: row.try_get(4)?,
        updated_at: row.try_get(5)?,
        actor: row.try_get(6)?,
        reason: row.try_get(7)?,
        what: row.try_get(8)?,
    })
}
