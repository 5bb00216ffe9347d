//! Rows of recharges that contradict each other.

use jiff::{SignedDuration, Timestamp};

use super::{AuditReader, Error};

/// Findings of one round.
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

impl AuditReader {
    /// Compares the rows of recharges that are new since the round before. Returns the findings for
    /// people, and where the next round begins.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn recharges(
        &mut self,
        from: RechargesFrom,
    ) -> Result<(Vec<String>, RechargesFrom), Error> {
        let client = self.client().await?;
        let now: Timestamp = client.query_one("SELECT clock_timestamp()", &[]).await?.try_get(0)?;
        let contradictions = "SELECT subject, what FROM audit_recharges($1) LIMIT $2";
        let mut found = Vec::new();
        for row in client.query(contradictions, &[&from.0, &FINDINGS_MAX]).await? {
            let (subject, what): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            found.push(format!("{subject}: it {what}"));
        }
        self.client = Some(client);
        // A finding is found again.
        let next = match found.is_empty() {
            true => RechargesFrom(now.saturating_sub(OVERLAP).unwrap_or(from.0)),
            false => from,
        };
        Ok((found, next))
    }
}
