//! Venues: the mark that the log has postings which PostgreSQL does not know, and the venues that
//! must send again after a cut of the log.

use super::Admin;
use crate::postgres::cut::{self, CutState};
use crate::postgres::{Error, posted};

impl Admin {
    /// Marks the database: Spot can no longer be rebuilt from it alone. Durable once it returns.
    /// Call it before the log gets its first record of a venue. A repeat changes nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded. No venue may be added.
    pub async fn mark_posted(&self) -> Result<(), Error> {
        let client = self.pool().get().await?;
        posted::set(&**client, self.incarnation()).await
    }

    /// Whether the database has the mark.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn is_posted(&self) -> Result<bool, Error> {
        let client = self.pool().get().await?;
        posted::read(&**client, self.incarnation()).await
    }

    /// With which rights to POST a venue was to be added: at most both. A cut of the log may have
    /// taken its registration.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn posts_of(&self, venue: u32) -> Result<Vec<bool>, Error> {
        let rights = "SELECT DISTINCT detail LIKE '% posts=true' FROM admin_audit \
                      WHERE action = 'venue add' AND subject = $1";
        let subject = format!("venue {venue}");
        let rows = self.pool().get().await?.query(rights, &[&subject]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Records the last answer that a venue has, after a cut of the log. Durable once it returns.
    /// For the same cut a lower one is not recorded, and the same one again only behind credits: a
    /// repair must know that the venue has sent behind them.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn note_venue(&self, actor: &str, venue: u32, number: u64) -> Result<(), Error> {
        let (noted, sent) = cut::noted(&**self.pool().get().await?, venue).await?;
        if noted.is_some_and(|noted| number < noted || sent && number == noted) {
            return Ok(());
        }
        let (subject, detail) = (format!("venue {venue}"), format!("answers={number}"));
        self.audit(actor, cut::VENUE_OPENS, &subject, &detail, "an Open after a cut of the log")
            .await
    }

    /// The state of the last cut of the log.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn cut(&self) -> Result<CutState, Error> {
        cut::state(&**self.pool().get().await?).await
    }

    /// The venues that must send again, and whether there were any; `None` if no cut of the log is
    /// open.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn cut_venues(&self) -> Result<Option<(Vec<cut::CutVenue>, bool)>, Error> {
        let client = self.pool().get().await?;
        match cut::state(&**client).await? {
            CutState::Closed => Ok(None),
            CutState::Open | CutState::Credited => cut::venues(&**client).await.map(Some),
        }
    }
}
