//! Rows of recharges that contradict each other.

use jiff::{SignedDuration, Timestamp};
use tokio_postgres::Client;

use super::{AuditReader, Error};

/// Payments of one page.
const PAYMENTS_PER_PAGE: i64 = 10_000;
/// Findings of one page.
const FINDINGS_MAX: i64 = 100;
/// A row may be committed this much later than the time in it, and the clocks may differ.
const OVERLAP: SignedDuration = SignedDuration::from_mins(15);

/// Where the next round of recharges begins.
#[derive(Clone, Copy, Debug)]
pub struct RechargesFrom(Timestamp);

impl RechargesFrom {
    /// Everything.
    pub fn beginning() -> RechargesFrom {
        RechargesFrom(Timestamp::UNIX_EPOCH)
    }
}

/// How the word about a key begins that a restore has left without its order.
const NEEDED: &str = "RECOVER_NEEDED: ";

/// The findings of one page.
#[derive(Debug)]
pub struct RechargesPage {
    /// For people.
    pub found: Vec<String>,
    /// Keys that a repair has brought back before their orders: `ubscore recharge recover` brings
    /// those. No money is made or lost.
    pub needed: Vec<String>,
    /// Where the next page begins; `None`: no row is behind this one.
    pub next: Option<RechargesFrom>,
    /// Where the next round begins: a row may still appear behind the end of a young page.
    pub later: RechargesFrom,
}

impl AuditReader {
    /// Compares a page of the rows of recharges, by time.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or the page takes longer than its limit.
    pub async fn recharges(&mut self, from: RechargesFrom) -> Result<RechargesPage, Error> {
        let client = self.client().await?;
        let (end, later) = page(&client, from).await?;
        // A key that waits for its order hides no contradiction.
        let contradictions = "SELECT subject, what FROM \
                              audit_recharges($1, COALESCE($2::timestamptz, 'infinity')) \
                              ORDER BY starts_with(what, $4) LIMIT $3";
        let (mut found, mut needed) = (Vec::new(), Vec::new());
        for row in client.query(contradictions, &[&from.0, &end, &FINDINGS_MAX, &NEEDED]).await? {
            let (subject, what): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            match what.strip_prefix(NEEDED) {
                Some(what) => needed.push(format!("{subject}: it {what}")),
                None => found.push(format!("{subject}: it {what}")),
            }
        }
        self.client = Some(client);
        Ok(RechargesPage { found, needed, next: end.map(RechargesFrom), later })
    }

    /// Compares the promotions of a page, and their bonuses, in a statement of its own: it adds up
    /// every order of such a promotion.
    ///
    /// # Errors
    /// As [`AuditReader::recharges`].
    pub async fn promotions(&mut self, from: RechargesFrom) -> Result<RechargesPage, Error> {
        let client = self.client().await?;
        let (end, later) = page(&client, from).await?;
        let contradictions = "SELECT subject, what FROM \
                              audit_promotions($1, COALESCE($2::timestamptz, 'infinity')) LIMIT $3";
        let mut found = Vec::new();
        for row in client.query(contradictions, &[&from.0, &end, &FINDINGS_MAX]).await? {
            let (subject, what): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            found.push(format!("{subject}: it {what}"));
        }
        self.client = Some(client);
        Ok(RechargesPage { found, needed: Vec::new(), next: end.map(RechargesFrom), later })
    }

    /// Compares the accounts of channels with the rows that they come from. It reads whole tables.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn channel_accounts(&mut self) -> Result<Vec<String>, Error> {
        let client = self.client().await?;
        let differences = "SELECT subject, what FROM audit_recharge_accounts() LIMIT $1";
        let mut found = Vec::new();
        for row in client.query(differences, &[&FINDINGS_MAX]).await? {
            let (subject, what): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            found.push(format!("{subject}: it {what}"));
        }
        self.client = Some(client);
        Ok(found)
    }
}

/// The end of a page; `None`: no payment is behind it. And where the next round begins.
async fn page(
    client: &Client,
    from: RechargesFrom,
) -> Result<(Option<Timestamp>, RechargesFrom), Error> {
    let now: Timestamp = client.query_one("SELECT clock_timestamp()", &[]).await?.try_get(0)?;
    let end = "SELECT updated_at FROM channel_payments WHERE updated_at > $1 \
                ORDER BY updated_at OFFSET $2 LIMIT 1";
    let end = client.query_opt(end, &[&from.0, &PAYMENTS_PER_PAGE]).await?;
    let end: Option<Timestamp> = end.map(|row| row.try_get(0)).transpose()?;
    let late = now.saturating_sub(OVERLAP).unwrap_or(from.0);
    Ok((end, RechargesFrom(end.map_or(late, |end| end.min(late)))))
}
