//! The bills of channels: their rows, the lines that a try has read, and the movements behind them.
//!
//! Each write begins with the fence. Lines are written in batches, and count once their try is the
//! `run` of the bill, in one commit with its sums and fees. `findings` compares them.

mod findings;

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::columns::{Numeric, amount_number, asset_number};
use super::reads::Reads;
use super::{Error, admin};
use crate::recharge::answers::{BillKind, BillLine, BillSums};
use crate::recharge::bill::{BillState, ChannelBill};
use crate::recharge::movement::{LedgerAccount, MovementKind};
use crate::recharge::{RechargeId, ReturnId};
use domain::amount::Amount;
use domain::asset::AssetId;

pub use self::findings::{BillCompared, FindingSearch};

/// The columns that [`bill_from_row`] reads, in its order.
const COLUMNS: &str = "channel, day, state, tries, run, looks, next_at, fetched_at, lines, paid, \
                       returned, fees, foreign_lines, what, again, foreign_fees";
/// Lines that are removed with one statement.
const REMOVED_MAX: i64 = 50_000;
/// Lines of returns are kept for so many days: a return is done here some time behind its line, and
/// no channel sends money back behind a year.
const RETURNS_KEPT_DAYS: i32 = 400;
/// The most bills of one answer.
const SHOWN_MAX: i64 = 1_000;

/// Reads and writes bills, as one incarnation.
#[derive(Clone)]
pub struct BillStore {
    reads: Reads,
    incarnation: i64,
    /// One comparison runs at a time: it reads millions of lines.
    comparing: Arc<Semaphore>,
}

/// The fees of a good bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillFees {
    /// The key of the movement.
    pub key: String,
    /// The asset.
    pub asset: AssetId,
    /// How much; `None`: none.
    pub amount: Option<Amount>,
    /// The channel has given fees back.
    pub given_back: bool,
    /// Those of other users of the merchant account, the channel's minor units.
    pub foreign: i64,
}

/// Money that has reached the bank, as an operator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankSettlement {
    /// The key of the movement.
    pub key: String,
    /// The channel.
    pub channel: String,
    /// The asset.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// So much has not reached it: it takes an earlier one back.
    pub is_back: bool,
}

/// The end of a [`BankSettlement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BankSettled {
    /// It is booked now.
    Booked,
    /// It was booked before.
    Before,
    /// Its key is that of another one.
    Conflict,
}

impl BillStore {
    /// Reads and writes through the pool of `reads`.
    pub(super) fn new(reads: Reads, incarnation: i64) -> BillStore {
        BillStore { reads, incarnation, comparing: Arc::new(Semaphore::new(1)) }
    }

    /// Runs a write behind the fence, in one commit. It ends at once: a successor waits for it.
    async fn fenced<T>(
        &self,
        write: impl AsyncFnOnce(&tokio_postgres::Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        let ours = "SELECT 1 FROM engine_state WHERE incarnation = $1 FOR SHARE";
        if transaction.query_opt(ours, &[&self.incarnation]).await?.is_none() {
            return Err(Error::Superseded);
        }
        let done = write(&transaction).await?;
        transaction.commit().await?;
        Ok(done)
    }

    async fn query(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let client = self.reads.pool.get().await?;
        let rows = client.query(statement, values).await?;
        self.reads.pool.note(&client).await?;
        Ok(rows)
    }

    /// When the name of a channel was given to its merchant: no order of it is older.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn channel_since(&self, channel: &str) -> Result<Option<Timestamp>, Error> {
        let since = "SELECT created_at FROM channels_tb WHERE name = $1";
        let rows = self.query(since, &[&channel]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    /// The last day of a channel that has a row.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn last_bill_day(&self, channel: &str) -> Result<Option<Date>, Error> {
        let last = "SELECT max(day) FROM channel_bills WHERE channel = $1";
        let rows = self.query(last, &[&channel]).await?;
        rows.first().map_or(Ok(None), |row| Ok(row.try_get(0)?))
    }

    /// Has the bills of these days fetched from `at` on. Days that have a row stay as they are.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn want_bills(
        &self,
        channel: &str,
        days: &[Date],
        at: Timestamp,
    ) -> Result<(), Error> {
        let insert = "INSERT INTO channel_bills (channel, day, next_at) \
                      SELECT $1, d, $3::timestamptz FROM unnest($2::date[]) AS d \
                      ON CONFLICT (channel, day) DO NOTHING";
        self.fenced(async |transaction| {
            transaction.execute(insert, &[&channel, &days, &at]).await?;
            Ok(())
        })
        .await
    }

    /// Has the bill of one day fetched anew, by an operator, with its audit row. Its state stands
    /// until the new one is here. Bills beside it that have lost their lines come again with it.
    /// Returns the bill as it stands then.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`].
    pub async fn want_again(
        &self,
        (channel, day): (&str, Date),
        at: Timestamp,
        (actor, reason): (&str, &str),
    ) -> Result<ChannelBill, Error> {
        let want = format!(
            "INSERT INTO channel_bills (channel, day, next_at) VALUES ($1, $2, $3) \
             ON CONFLICT (channel, day) DO UPDATE SET again = TRUE, next_at = $3 \
             RETURNING {COLUMNS}"
        );
        let beside = "UPDATE channel_bills SET again = TRUE, next_at = $3 \
                       WHERE channel = $1 AND day IN ($2::date - 1, $2::date + 1) AND purged";
        self.fenced(async |transaction| {
            let row = transaction.query_one(&want, &[&channel, &day, &at]).await?;
            transaction.execute(beside, &[&channel, &day, &at]).await?;
            let subject = format!("{channel} {day}");
            admin::audit(transaction, actor, "bill reconcile", &subject, "", reason).await?;
            bill_from_row(&row)
        })
        .await
    }

    /// The bill of a channel that is due for the longest.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn due_bill(
        &self,
        channel: &str,
        now: Timestamp,
    ) -> Result<Option<ChannelBill>, Error> {
        let due = format!(
            "SELECT {COLUMNS} FROM channel_bills WHERE next_at <= $2 AND channel = $1 \
              ORDER BY next_at, day LIMIT 1"
        );
        self.query(&due, &[&channel, &now]).await?.first().map(bill_from_row).transpose()
    }

    /// When the next bill is due behind `now`.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn next_bill_at(&self, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        let next = "SELECT min(next_at) FROM channel_bills WHERE next_at > $1";
        let rows = self.query(next, &[&now]).await?;
        rows.first().map_or(Ok(None), |row| Ok(row.try_get(0)?))
    }

    /// The bill of one day.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn channel_bill(
        &self,
        channel: &str,
        day: Date,
    ) -> Result<Option<ChannelBill>, Error> {
        let bill = format!("SELECT {COLUMNS} FROM channel_bills WHERE channel = $1 AND day = $2");
        self.query(&bill, &[&channel, &day]).await?.first().map(bill_from_row).transpose()
    }

    /// The first bill of a channel that has never been good.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn first_missing(&self, channel: &str) -> Result<Option<ChannelBill>, Error> {
        let first = format!(
            "SELECT {COLUMNS} FROM channel_bills WHERE channel = $1 AND run IS NULL \
              ORDER BY day LIMIT 1"
        );
        self.query(&first, &[&channel]).await?.first().map(bill_from_row).transpose()
    }

    /// The newest bills; of one channel and day, where they are given.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn channel_bills(
        &self,
        channel: Option<&str>,
        day: Option<Date>,
    ) -> Result<Vec<ChannelBill>, Error> {
        let bills = format!(
            "SELECT {COLUMNS} FROM channel_bills \
              WHERE ($1::text IS NULL OR channel = $1) AND ($2::date IS NULL OR day = $2) \
              ORDER BY day DESC, channel LIMIT $3"
        );
        self.query(&bills, &[&channel, &day, &SHOWN_MAX]).await?.iter().map(bill_from_row).collect()
    }

    /// Whether a payment of a channel is here, of a time in this span.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn has_trade(
        &self,
        channel: &str,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<bool, Error> {
        let trade = "SELECT EXISTS (SELECT FROM channel_payments WHERE channel = $1 \
                        AND updated_at >= $2::timestamptz - INTERVAL '1 day' \
                        AND paid_at >= $2 AND paid_at < $3)";
        let rows = self.query(trade, &[&channel, &from, &to]).await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?))
    }

    /// Writes down a try to fetch a bill, before its call. `None`: the row has changed meanwhile.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`]. The outcome may be unknown.
    pub async fn bill_tried(
        &self,
        bill: &ChannelBill,
        next_at: Timestamp,
    ) -> Result<Option<ChannelBill>, Error> {
        let tried = format!(
            "UPDATE channel_bills SET tries = tries + 1, next_at = $4, what = NULL \
              WHERE channel = $1 AND day = $2 AND tries = $3 AND (state = 0 OR again) \
              RETURNING {COLUMNS}"
        );
        self.fenced(async |transaction| {
            let values: &[&(dyn ToSql + Sync)] = &[&bill.channel, &bill.day, &bill.tries, &next_at];
            transaction.query_opt(&tried, values).await?.as_ref().map(bill_from_row).transpose()
        })
        .await
    }

    /// Writes down why a try has brought no bill.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`].
    pub async fn bill_failed(&self, bill: &ChannelBill, what: &str) -> Result<(), Error> {
        let failed = "UPDATE channel_bills SET what = $4 \
                       WHERE channel = $1 AND day = $2 AND tries = $3 AND (state = 0 OR again)";
        self.fenced(async |transaction| {
            let values: &[&(dyn ToSql + Sync)] = &[&bill.channel, &bill.day, &bill.tries, &what];
            transaction.execute(failed, values).await?;
            Ok(())
        })
        .await
    }

    /// Writes lines of a try. `place`: that of the first one. They do not count yet.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`].
    pub async fn stage_lines(
        &self,
        bill: &ChannelBill,
        place: i64,
        lines: &[BillLine],
    ) -> Result<(), Error> {
        let insert = "INSERT INTO channel_bill_lines (channel, day, run, place, kind, marked, \
                        merchant_no, trade_no, return_no, channel_return_no, number, minor_units, \
                        currency, at, fee_parts, fee_currency) \
                      SELECT $1, $2::date, $3::bigint, $4::bigint + l.place - 1, l.kind, l.marked, l.merchant_no, \
                        l.trade_no, l.return_no, l.channel_return_no, l.number, l.minor_units, \
                        l.currency, l.at, l.fee_parts, l.fee_currency \
                      FROM unnest($5::smallint[], $6::bool[], $7::text[], $8::text[], $9::text[], \
                             $10::text[], $11::text[], $12::bigint[], $13::text[], \
                             $14::timestamptz[], $15::bigint[], $16::text[]) WITH ORDINALITY \
                        AS l (kind, marked, merchant_no, trade_no, return_no, channel_return_no, \
                              number, minor_units, currency, at, fee_parts, fee_currency, place)";
        let columns = LineColumns::of(lines);
        let LineColumns { kind, marked, merchant_no, trade_no, return_no, .. } = &columns;
        let LineColumns { channel_return_no, number, minor_units, currency, at, .. } = &columns;
        let LineColumns { fee_parts, fee_currency, .. } = &columns;
        let values: &[&(dyn ToSql + Sync)] = &[
            &bill.channel,
            &bill.day,
            &bill.tries,
            &place,
            kind,
            marked,
            merchant_no,
            trade_no,
            return_no,
            channel_return_no,
            number,
            minor_units,
            currency,
            at,
            fee_parts,
            fee_currency,
        ];
        self.fenced(async |transaction| {
            transaction.execute(insert, values).await?;
            Ok(())
        })
        .await
    }

    /// The fees of a try's lines that are ours, in parts of a minor unit of a currency: lines with
    /// our mark, or of a payment here. Others share the merchant account.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn own_fees(&self, bill: &ChannelBill, currency: &str) -> Result<i64, Error> {
        let fees = "SELECT COALESCE(sum(l.fee_parts), 0)::bigint FROM channel_bill_lines l \
                     WHERE (l.channel, l.day, l.run) = ($1, $2, $3) AND l.fee_parts <> 0 \
                       AND l.fee_currency = $4 \
                       AND (l.marked OR EXISTS (SELECT FROM channel_payments p \
                                WHERE (p.channel, p.trade_no) = (l.channel, l.trade_no)))";
        let rows = self.query(fees, &[&bill.channel, &bill.day, &bill.tries, &currency]).await?;
        rows.first().map_or(Ok(0), |row| Ok(row.try_get(0)?))
    }

    /// Makes the lines of a try those of its bill, with its sums and its fees, in one commit. The
    /// bills beside it are due for another look. Returns the smallest units of the fees as
    /// they are booked; `None`: the row has changed meanwhile, and nothing is written.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`]. The outcome may be unknown: the next try sees it.
    pub async fn bill_whole(
        &self,
        bill: &ChannelBill,
        sums: BillSums,
        fees: &BillFees,
        now: Timestamp,
    ) -> Result<Option<i128>, Error> {
        let lines = i64::try_from(sums.lines).unwrap_or(i64::MAX);
        let whole = "UPDATE channel_bills SET state = 10, run = tries, lines = $4, paid = $5, \
                        returned = $6, fees = $7, fetched_at = $8, next_at = $8, looks = 0, \
                        purged = FALSE, again = FALSE, compared_at = NULL, what = NULL, \
                        asset_id = CASE WHEN fees_units <> 0 THEN asset_id ELSE $9 END, \
                        foreign_fees = $10 \
                      WHERE channel = $1 AND day = $2 AND tries = $3 AND (state = 0 OR again)";
        let beside = "UPDATE channel_bills SET next_at = $3 \
                       WHERE channel = $1 AND day IN ($2::date - 1, $2::date + 1) \
                         AND state = 10 AND NOT again";
        let booked = "UPDATE channel_bills SET fees_units = $3 WHERE channel = $1 AND day = $2";
        self.fenced(async |transaction| {
            let (paid, returned, asset) = (sums.paid, sums.returned, asset_number(fees.asset));
            let values: &[&(dyn ToSql + Sync)] = &[
                &bill.channel,
                &bill.day,
                &bill.tries,
                &lines,
                &paid,
                &returned,
                &sums.fees,
                &now,
                &asset,
                &fees.foreign,
            ];
            if transaction.execute(whole, values).await? == 0 {
                return Ok(None);
            }
            let units = book_fees(transaction, &bill.channel, fees, now).await?;
            let (channel, day) = (&bill.channel, &bill.day);
            transaction.execute(booked, &[channel, day, &Numeric(units)]).await?;
            transaction.execute(beside, &[channel, day, &now]).await?;
            Ok(Some(units))
        })
        .await
    }

    /// Books money that has reached the bank, once for its key, with its audit row.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`]. The outcome may be unknown, and a repeat is harmless.
    pub async fn settle_channel(
        &self,
        settlement: &BankSettlement,
        now: Timestamp,
        (actor, reason, detail): (&str, &str, &str),
    ) -> Result<BankSettled, Error> {
        let BankSettlement { key, channel, asset, amount, is_back } = settlement;
        let bank = LedgerAccount::Bank(channel.clone()).to_string();
        let clearing = LedgerAccount::Clearing(channel.clone()).to_string();
        let sides = match is_back {
            false => (bank.as_str(), clearing.as_str()),
            true => (clearing.as_str(), bank.as_str()),
        };
        let kind = MovementKind::Bank;
        self.fenced(async |transaction| {
            let movement = Moved { key, kind, sides, asset: *asset, amount: *amount };
            if movement.book(transaction, now).await? {
                admin::audit(transaction, actor, "channel settle", channel, detail, reason).await?;
                return Ok(BankSettled::Booked);
            }
            let same = "SELECT EXISTS (SELECT FROM recharge_movements WHERE movement_key = $1 \
                          AND (kind, debit, credit, asset_id, amount) = ($2, $3, $4, $5, $6))";
            let (number, units) = (kind.number(), amount_number(*amount));
            let values: &[&(dyn ToSql + Sync)] =
                &[key, &number, &sides.0, &sides.1, &asset_number(*asset), &units];
            let same: bool = transaction.query_one(same, values).await?.try_get(0)?;
            Ok(if same { BankSettled::Before } else { BankSettled::Conflict })
        })
        .await
    }

    /// Whether money was booked under this key.
    ///
    /// # Errors
    /// As [`BillStore::channel_since`].
    pub async fn is_settled(&self, key: &str) -> Result<bool, Error> {
        let known = "SELECT EXISTS (SELECT FROM recharge_movements WHERE movement_key = $1)";
        let rows = self.query(known, &[&key]).await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?))
    }

    /// Removes the lines of tries that have brought no bill, of bills that are clean with both of
    /// their neighbours, and of returns that are too old to matter: some of them. Returns whether
    /// there may be more.
    ///
    /// # Errors
    /// As [`BillStore::want_bills`].
    pub async fn remove_lines(&self, channel: &str) -> Result<bool, Error> {
        // A bill whose neighbours are not clean needs its lines for them.
        let stale = "WITH over AS (\
                SELECT b.day, b.run FROM channel_bills b \
                 WHERE b.channel = $1 AND b.state = 40 AND NOT b.purged AND NOT b.again \
                   AND NOT EXISTS (SELECT FROM channel_bills n WHERE n.channel = $1 \
                        AND n.day BETWEEN b.day - 1 AND b.day + 1 \
                        AND (n.state <> 40 OR n.again)) \
                   AND EXISTS (SELECT FROM channel_bills n \
                                WHERE n.channel = $1 AND n.day = b.day + 1)), \
              stale AS (\
                SELECT b.day, r AS run FROM channel_bills b \
                 CROSS JOIN generate_series(1, b.tries) AS r \
                 WHERE b.channel = $1 AND NOT b.purged AND r IS DISTINCT FROM b.run \
                   AND (r < b.tries OR b.state <> 0 AND NOT b.again)), \
              doomed AS (\
                SELECT l.ctid FROM over JOIN channel_bill_lines l \
                    ON l.channel = $1 AND (l.day, l.run) = (over.day, over.run) \
                 WHERE l.kind IN (1, 5) \
                UNION ALL \
                SELECT l.ctid FROM stale JOIN channel_bill_lines l \
                    ON l.channel = $1 AND (l.day, l.run) = (stale.day, stale.run) \
                UNION ALL \
                SELECT ctid FROM channel_bill_lines \
                 WHERE channel = $1 AND day < current_date - $3::int \
                 LIMIT $2), \
              removed AS (DELETE FROM channel_bill_lines \
                           WHERE ctid = ANY (ARRAY(SELECT ctid FROM doomed)) RETURNING 1) \
              SELECT count(*), ARRAY(SELECT day FROM over) FROM removed";
        let purged = "UPDATE channel_bills SET purged = TRUE \
                       WHERE channel = $1 AND day = ANY ($2) AND state = 40 AND NOT again";
        self.fenced(async |transaction| {
            let values: &[&(dyn ToSql + Sync)] = &[&channel, &REMOVED_MAX, &RETURNS_KEPT_DAYS];
            let row = transaction.query_one(stale, values).await?;
            let (removed, days): (i64, Vec<Date>) = (row.try_get(0)?, row.try_get(1)?);
            if removed < REMOVED_MAX {
                transaction.execute(purged, &[&channel, &days]).await?;
            }
            Ok(removed == REMOVED_MAX)
        })
        .await
    }
}

/// Books the fees of a bill, once for its day. Returns the smallest units that are booked: those of
/// an earlier try stand.
async fn book_fees(
    transaction: &tokio_postgres::Transaction<'_>,
    channel: &str,
    fees: &BillFees,
    now: Timestamp,
) -> Result<i128, Error> {
    let of_fees = LedgerAccount::Fees(channel.to_owned()).to_string();
    let clearing = LedgerAccount::Clearing(channel.to_owned()).to_string();
    if let Some(amount) = fees.amount {
        let sides = match fees.given_back {
            false => (of_fees.as_str(), clearing.as_str()),
            true => (clearing.as_str(), of_fees.as_str()),
        };
        let kind = MovementKind::Fees;
        let movement = Moved { key: &fees.key, kind, sides, asset: fees.asset, amount };
        movement.book(transaction, now).await?;
    }
    let stands = "SELECT CASE debit WHEN $2 THEN amount ELSE -amount END \
                    FROM recharge_movements WHERE movement_key = $1";
    let row = transaction.query_opt(stands, &[&fees.key, &of_fees]).await?;
    row.map_or(Ok(0), |row| Ok(i128::from(row.try_get::<_, i64>(0)?)))
}

/// A movement that belongs to no payment.
struct Moved<'a> {
    key: &'a str,
    kind: MovementKind,
    /// The debit and the credit account.
    sides: (&'a str, &'a str),
    asset: AssetId,
    amount: Amount,
}

impl Moved<'_> {
    /// Books it once for its key. Returns whether it was new.
    async fn book(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let insert = "INSERT INTO recharge_movements \
                        (movement_key, kind, debit, credit, asset_id, amount, at) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (movement_key) DO NOTHING";
        let (kind, (debit, credit)) = (self.kind.number(), self.sides);
        let (asset, units) = (asset_number(self.asset), amount_number(self.amount));
        let values: &[&(dyn ToSql + Sync)] =
            &[&self.key, &kind, &debit, &credit, &asset, &units, &now];
        Ok(transaction.execute(insert, values).await? == 1)
    }
}

/// The lines of a batch, by column.
#[derive(Default)]
struct LineColumns {
    kind: Vec<i16>,
    marked: Vec<bool>,
    merchant_no: Vec<String>,
    trade_no: Vec<String>,
    return_no: Vec<Option<String>>,
    channel_return_no: Vec<Option<String>>,
    number: Vec<Option<String>>,
    minor_units: Vec<i64>,
    currency: Vec<String>,
    at: Vec<Timestamp>,
    fee_parts: Vec<i64>,
    fee_currency: Vec<String>,
}

impl LineColumns {
    fn of(lines: &[BillLine]) -> LineColumns {
        let mut columns = LineColumns::default();
        for line in lines {
            columns.kind.push(kind_number(line.kind));
            columns.marked.push(RechargeId::parse(&line.merchant_no).is_some());
            columns.merchant_no.push(plain(&line.merchant_no));
            columns.trade_no.push(plain(&line.trade_no));
            let ours = line.return_no.as_deref().filter(|no| ReturnId::parse(no).is_some());
            let number = ours.or(line.channel_return_no.as_deref());
            columns.number.push(number.map(plain));
            columns.return_no.push(line.return_no.as_deref().map(plain));
            columns.channel_return_no.push(line.channel_return_no.as_deref().map(plain));
            columns.minor_units.push(line.minor_units);
            columns.currency.push(plain(&line.currency));
            columns.at.push(line.at);
            columns.fee_parts.push(line.fee_parts);
            columns.fee_currency.push(plain(&line.fee_currency));
        }
        columns
    }
}

/// A text without the one character that PostgreSQL has no place for. Nothing of ours has it.
fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The number of a kind of lines.
fn kind_number(kind: BillKind) -> i16 {
    match kind {
        BillKind::Paid => 1,
        BillKind::Returned => 2,
        BillKind::Taken => 3,
        BillKind::GivenBack => 4,
        BillKind::Other => 5,
        BillKind::Undone => 6,
    }
}

fn bill_from_row(row: &Row) -> Result<ChannelBill, Error> {
    let bad = |what: String| Error::Row { table: "channel_bills", what };
    let number: i16 = row.try_get(2)?;
    let (looks, lines): (i32, i64) = (row.try_get(5)?, row.try_get(8)?);
    Ok(ChannelBill {
        channel: row.try_get(0)?,
        day: row.try_get(1)?,
        state: BillState::from_number(number).ok_or_else(|| bad(format!("state {number}")))?,
        tries: row.try_get(3)?,
        run: row.try_get(4)?,
        looks: u32::try_from(looks).unwrap_or(0),
        next_at: row.try_get(6)?,
        fetched_at: row.try_get(7)?,
        sums: BillSums {
            lines: u64::try_from(lines).map_err(|_| bad(format!("lines {lines}")))?,
            paid: row.try_get(9)?,
            returned: row.try_get(10)?,
            fees: row.try_get(11)?,
        },
        foreign: row.try_get(12)?,
        what: row.try_get(13)?,
        again: row.try_get(14)?,
        foreign_fees: row.try_get(15)?,
    })
}
