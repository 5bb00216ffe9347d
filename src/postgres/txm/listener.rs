//! The listener of a node: it hears the channel `txm` on a connection of its own, and tells the
//! signers for which another process has stored work.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use txm::news::News;

use super::call::rows;
use super::rows as words;
use crate::postgres::connection::listen;
use crate::postgres::{Address, Connections, Error, Limits};

/// The channel of `sql/news.sql`.
const CHANNEL: &str = "txm";
/// The news that a signer was given back, by `txm.release`.
const FREED: &str = "freed";
/// The first pause behind a connection that was lost, and the longest one.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The task that hears. It ends when this is dropped.
pub(super) struct Listener {
    news: Arc<News>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Begins to hear. `pool`: the connections of the same database. `me`: the number of this
    /// process.
    pub(super) fn start(
        address: &Address,
        limits: &Limits,
        pool: &Connections,
        me: i64,
    ) -> Listener {
        let news = Arc::new(News::default());
        let ear = Ear {
            address: address.clone(),
            limits: *limits,
            pool: pool.clone(),
            me,
            news: Arc::clone(&news),
        };
        Listener { news, task: tokio::spawn(ear.hear_on()) }
    }

    /// The signers with news.
    pub(super) fn news(&self) -> Arc<News> {
        Arc::clone(&self.news)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Ear {
    address: Address,
    limits: Limits,
    pool: Connections,
    me: i64,
    news: Arc<News>,
}

impl Ear {
    /// Hears for ever. While there is no connection, the node looks often by itself.
    async fn hear_on(self) {
        let mut pause = BACK_OFF;
        loop {
            match self.hear().await {
                Ok(()) => warn!("the news of the transaction manager are lost: connecting again"),
                Err(error) => debug!(%error, "no connection for news"),
            }
            // It was heard: the next connection is tried soon.
            pause = if self.news.is_live() { BACK_OFF } else { (pause * 2).min(BACK_OFF_MAX) };
            self.news.set_live(false);
            sleep(pause).await;
        }
    }

    /// Hears over one connection until it ends.
    async fn hear(&self) -> Result<(), Error> {
        let hello = format!("hello {}", self.me);
        let (news, own) = (Arc::clone(&self.news), hello.clone());
        let heard = move |payload: &str| match words::account(payload) {
            Ok(signer) => news.tell(signer),
            Err(_) if payload == own => news.set_live(true),
            Err(_) if payload == FREED => news.tell_freed(),
            // The hello of another process.
            Err(_) => {}
        };
        let (client, mut task) = listen(&self.address, &self.limits, CHANNEL, heard).await?;
        // Something between us and the server may drop notifications. So the first one is our own,
        // by another connection.
        if let Err(error) =
            rows(&self.pool, "SELECT pg_notify($1, $2)::text", &[&CHANNEL, &hello]).await
        {
            debug!(%error, "no first news");
            // It may have been sent all the same, and would say that this connection is heard.
            task.abort();
            return Ok(());
        }
        if timeout(self.pool.limit(), &mut task).await.is_err() {
            match self.news.is_live() {
                true => info!("news of the transaction manager arrive"),
                false => warn!("PostgreSQL sends no notifications: looking for work by time"),
            }
            // Its task ends with the connection.
            drop(task.await);
        }
        drop(client);
        Ok(())
    }
}
