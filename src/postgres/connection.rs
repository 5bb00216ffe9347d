//! Connections: opened by an [`Address`], checked by their settings and by its [`super::pin::Pin`], and driven with an eye
//! on notices.
//!
//! **A cancelled wait for a synchronous standby.** PostgreSQL then answers COMMIT as a success, after a notice: the commit is
//! on this server, and may be on no standby. A failover would lose it. So such a notice ends the connection before the
//! answer behind it is read, and the caller gets the error of a lost connection: the outcome of its commit is unknown, for
//! every kind of caller. What is asked again runs as a new flight. Each flight writes its journal row, so it has a commit of its
//! own and waits for a standby itself. WAL is replicated in order: when that wait ends, the earlier commit is there too.
//! Reads through the pool wait until such a commit has ended, see [`super::pin::Pin::doubt`].

use std::future::{Future, poll_fn};
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Status,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::DbError;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};
use tracing::{debug, error, info};

use super::address::Address;
use super::pin::{Pin, Sight, last_flights};
use super::{BY_KEYS, Error, Limits, session, session_settings};

/// What PostgreSQL calls the function that waits for a standby. Its message may be translated, this is not.
const WAITS_FOR_STANDBY: &str = "SyncRepWaitForLSN";

/// Opens one connection, to the server that the process is pinned to, if it is. What the server says on its own goes to the
/// log.
///
/// # Errors
/// [`Error::Connect`], [`Error::Timeout`], [`Error::Changed`], [`Error::Superseded`].
pub async fn connect(address: &Address, limits: &Limits) -> Result<Client, Error> {
    Ok(open(address, limits, ignore).await?.0)
}

/// A connection that hears a channel of PostgreSQL: `heard` gets each payload. News that came before are lost. It ends with
/// its client, and so does its task.
///
/// # Errors
/// As [`connect`], and [`Error::Query`].
pub(super) async fn listen(
    address: &Address,
    limits: &Limits,
    channel: &'static str,
    heard: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(Client, JoinHandle<()>), Error> {
    let (client, task) = open(address, limits, heard).await?;
    within(limits.connect_timeout, client.batch_execute(&format!("LISTEN {channel}"))).await??;
    Ok((client, task))
}

/// For connections that hear no channel.
fn ignore(_payload: &str) {}

async fn open(
    address: &Address,
    limits: &Limits,
    heard: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(Client, JoinHandle<()>), Error> {
    let admission = address.pin().map(|pin| pin.ask(address.examines())).transpose()?;
    let incarnation = address.pin().and_then(|pin| pin.incarnation());
    let config = session(address.config(), limits, incarnation);
    let (client, connection) = timeout(limits.connect_timeout, config.connect(address.connector()))
        .await
        .map_err(|_elapsed| Error::Timeout(limits.connect_timeout))?
        .map_err(Error::Connect)?;
    let changes = admission.as_ref().map(|admission| admission.changes.clone());
    let task = tokio::spawn(drive(connection, address.pin().cloned(), changes, heard));
    // The connection ends with its client.
    let checks = async {
        check_settings(&client, limits).await?;
        match admission {
            Some(admission) => admission.admit(Sight::read(&client, admission.answered()).await?),
            None => Ok(()),
        }
    };
    timeout(limits.connect_timeout, checks)
        .await
        .map_err(|_elapsed| Error::Timeout(limits.connect_timeout))??;
    Ok((client, task))
}

/// The answer to a call within a time. A call that takes longer is dropped.
///
/// # Errors
/// [`Error::Timeout`].
pub(super) async fn within<T>(limit: Duration, call: impl Future<Output = T>) -> Result<T, Error> {
    timeout(limit, call).await.map_err(|_elapsed| Error::Timeout(limit))
}

/// Refuses a connection that has other settings than those it was opened with: something between us
/// and the server has dropped them.
async fn check_settings(client: &Client, limits: &Limits) -> Result<(), Error> {
    let settings = session_settings(limits);
    let names = settings.each_ref().map(|(name, _)| *name);
    let query = "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)";
    let names: (&(dyn ToSql + Sync), Type) = (&names.as_slice(), Type::TEXT_ARRAY);
    let rows = client.query_typed(query, &[names]).await?;
    let found = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let found = found.collect::<Result<Vec<(&str, &str)>, tokio_postgres::Error>>()?;
    for (name, asked) in settings {
        let found = found.iter().find(|(found, _)| *found == name).map_or("unknown", |(_, is)| *is);
        if found != asked {
            return Err(Error::Setting { name, asked, found: found.to_owned() });
        }
    }
    Ok(())
}

/// Moves bytes until either end closes, a commit is in doubt, or the process may not use the server any more.
async fn drive(
    mut connection: Connection<Socket, impl AsyncRead + AsyncWrite + Unpin>,
    pin: Option<Arc<Pin>>,
    changes: Option<watch::Receiver<u64>>,
    heard: impl Fn(&str),
) {
    let work = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) if is_cancelled_wait(&notice) => {
                    error!(
                        notice = notice.message(),
                        "a commit may be on no standby: its outcome counts as unknown"
                    );
                    if let Some(pin) = &pin {
                        pin.doubt();
                    }
                    return;
                }
                Ok(AsyncMessage::Notice(notice)) => {
                    info!("{}: {}", notice.severity(), notice.message());
                }
                Ok(AsyncMessage::Notification(news)) => heard(news.payload()),
                Ok(_) => {}
                // The caller gets the same error, and decides.
                Err(error) => {
                    debug!(%error, "a connection to PostgreSQL ended");
                    return;
                }
            }
        }
    };
    let changed = async {
        match changes {
            // The pin lives as long as an address.
            Some(mut changes) => drop(changes.changed().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = changed => debug!("a connection to PostgreSQL ends: the server has changed"),
        () = work => {}
    }
}

/// Whether the server gave up waiting for a synchronous standby, by cancellation or because it is ending the session.
fn is_cancelled_wait(notice: &DbError) -> bool {
    let by_name = notice.routine() == Some(WAITS_FOR_STANDBY);
    // A proxy may leave the fields out that only help developers.
    let by_text = notice.code().code() == "01000"
        && notice.message().contains("wait for synchronous replication");
    by_name || by_text
}

/// Ends a read: notes the last flights that it may have seen as answered, as
/// [`Pin::answered`](super::pin::Pin::answered) does. Nothing of the read may be told before. It
/// asks PostgreSQL only while a flight may be committed and not noted. The rows of a server that is
/// being compared with the log prove nothing, and are not noted.
///
/// # Errors
/// [`Error`]: nothing of the read may be told.
pub(super) async fn note(pin: Option<&Arc<Pin>>, client: &Client) -> Result<(), Error> {
    let Some(pin) = pin.filter(|pin| pin.is_flying() && pin.change().is_none()) else {
        return Ok(());
    };
    for row in last_flights(client).await? {
        pin.answered(row).map_err(Error::Unnoted)?;
    }
    Ok(())
}

/// A pool of connections for reads.
#[derive(Clone)]
pub struct Connections {
    pool: Pool,
    pin: Option<Arc<Pin>>,
    limit: Duration,
}

impl Connections {
    /// Longer than the server's own limits of a statement, so that the server answers first.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Lends a connection, once nothing that can be read over it is in doubt.
    ///
    /// # Errors
    /// [`Error`]: there is none in time.
    pub async fn get(&self) -> Result<Object, Error> {
        if let Some(pin) = &self.pin {
            if let Some(change) = pin.change() {
                return Err(Error::Changed(change.to_string()));
            }
            let limit = self.pool.timeouts().create;
            let certain = pin.certain();
            match limit {
                Some(limit) => timeout(limit, certain).await.map_err(|_| Error::Timeout(limit))?,
                None => certain.await,
            }
        }
        Ok(self.pool.get().await?)
    }

    /// A connection of the caller's own, for what takes long: the pool opens another in its place.
    /// It ends with its client.
    ///
    /// # Errors
    /// As [`Connections::get`].
    pub(super) async fn own(&self) -> Result<ClientWrapper, Error> {
        Ok(Object::take(self.get().await?))
    }

    /// [`note`] for a read over this pool.
    ///
    /// # Errors
    /// [`Error`]: nothing of the read may be told.
    pub(super) async fn note(&self, client: &Client) -> Result<(), Error> {
        note(self.pin.as_ref(), client).await
    }

    /// How far it is used.
    pub fn status(&self) -> Status {
        self.pool.status()
    }
}

/// A pool of at most `connections_max` connections for reads.
pub fn pool(address: &Address, limits: &Limits, connections_max: usize) -> Connections {
    pool_with(address, limits, connections_max, "")
}

/// The same for statements that touch a few rows of large tables, again and again.
pub(super) fn pool_by_keys(
    address: &Address,
    limits: &Limits,
    connections_max: usize,
) -> Connections {
    pool_with(address, limits, connections_max, BY_KEYS)
}

/// `first`: runs on each new connection.
fn pool_with(
    address: &Address,
    limits: &Limits,
    connections_max: usize,
    first: &'static str,
) -> Connections {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let opener = Opener { address: address.clone(), limits: *limits, first };
    let manager = Manager::from_connect(address.config().clone(), opener, recycling);
    let pool = Pool::builder(manager)
        .max_size(connections_max)
        .wait_timeout(Some(limits.connect_timeout))
        .create_timeout(Some(limits.connect_timeout))
        .recycle_timeout(Some(limits.connect_timeout))
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .build()
        .expect("a runtime is given");
    let limit = limits.connect_timeout + limits.statement_timeout + limits.lock_timeout;
    Connections { pool, pin: address.pin().cloned(), limit }
}

struct Opener {
    address: Address,
    limits: Limits,
    first: &'static str,
}

type Opened = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for Opener {
    fn connect(&self, _config: &Config) -> Pinned<Box<dyn Future<Output = Opened> + Send + '_>> {
        Box::pin(async move {
            match open(&self.address, &self.limits, ignore).await {
                Ok((client, task)) => {
                    client.batch_execute(self.first).await?;
                    Ok((client, task))
                }
                Err(Error::Connect(error) | Error::Query(error)) => Err(error),
                // The pool takes errors of the client only. This one is "connection closed".
                Err(refused) => {
                    debug!(%refused, "no connection for the pool");
                    let config = session(self.address.config(), &self.limits, None);
                    let (client, connection) = config.connect(self.address.connector()).await?;
                    drop(connection);
                    client.simple_query("").await?;
                    unreachable!("its connection has ended")
                }
            }
        })
    }
}
