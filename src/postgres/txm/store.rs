//! The fenced store of one node: each call is one statement, so that a paused process holds no
//! lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address as Account, B256};
use chain::decide::TxStep;
use chain::payload::address_text;
use chain::tx::{NewTx, Tx, TxId};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tracing::{debug, error, warn};
use txm::news::News;
use txm::options::SignerPolicy;
use txm::store::{
    Acquired, Arrived, Created, Lease, OtherOwner, Ready, SignerBook, SignerOwner, StoreError,
    Suspension, TxStore, Wanting,
};

use super::call::{Params, bigint, column, row, rows, unread, unsigned};
use super::listener::Listener;
use super::rows as words;
use super::witness::{NodeWitness, SeenSigner, WitnessError};
use crate::postgres::{Address, Connections, Error, Limits, pool_by_keys};

/// What a node brings to its store.
#[derive(Clone, Debug)]
pub struct NodeStart {
    /// Its name, for people.
    pub node: String,
    /// The address of its listener.
    pub url: String,
    /// The signers that it can sign for.
    pub signers: Vec<Account>,
    /// The outflow limits are those of the statement that stores a first attempt.
    pub policies: BTreeMap<Account, SignerPolicy>,
    /// Whether outflows are limited: an asset without a limit is then not paid. Only development
    /// goes without.
    pub is_limited: bool,
    /// The most rows of a signer without a nonce.
    pub queue_max: usize,
    /// The chain's number.
    pub chain_id: u64,
    /// The hash of block 0.
    pub genesis: B256,
    /// The lease.
    pub lease_duration: Duration,
    /// The skew.
    pub lease_skew: Duration,
}

/// A start that was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeRefusal {
    /// The database is of another chain, or live leases have other settings.
    #[error("the database of the transaction manager is another one's: {0}")]
    Bound(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// PostgreSQL.
    #[error(transparent)]
    Postgres(#[from] Error),
    /// The data directory.
    #[error(transparent)]
    Witness(#[from] WitnessError),
}

/// The store of one process.
#[derive(Clone)]
pub struct TxmStore {
    pool: Connections,
    /// The number of this process.
    me: i64,
    /// The outflow limits of each signer, as `txm.write` takes them; `None`: it wants none.
    outflows: Option<Arc<BTreeMap<Account, String>>>,
    queue_max: i64,
    listener: Arc<Listener>,
    /// `None`: this process remembers nothing over its end.
    witness: Option<Arc<NodeWitness>>,
}

/// The limits of a policy: `{asset: units}`, '' for the chain's own coin.
fn outflows(policy: &SignerPolicy) -> String {
    let limits = policy.outflow_per_hour_max.iter().map(|(asset, units)| {
        let asset = asset.as_ref().map_or(String::new(), address_text);
        (asset, Value::String(units.to_string()))
    });
    Value::Object(limits.collect::<Map<_, _>>()).to_string()
}

fn millis(time: Duration) -> Result<i64, StoreError> {
    bigint(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[derive(Deserialize)]
struct SuspensionRow {
    reason: String,
    actor: String,
}

fn suspension(text: &str) -> Result<Suspension, StoreError> {
    let row: SuspensionRow = serde_json::from_str(text).map_err(|error| unread(error.into()))?;
    Ok(Suspension { reason: row.reason, actor: row.actor })
}

/// The answer to one request: its outcome, the fields that differ, and the row.
fn created(row: &Row) -> Result<Created, StoreError> {
    let tx = |row: &Row| -> Result<Box<Tx>, StoreError> {
        Ok(Box::new(words::tx(column(row, 2)?).map_err(unread)?))
    };
    match column(row, 0)? {
        "new" => Ok(Created::New(tx(row)?)),
        "known" => Ok(Created::Known(tx(row)?)),
        "suspended" => Err(StoreError::Suspended),
        "overloaded" => Err(StoreError::Overloaded),
        _ => Ok(Created::Conflict(column(row, 1)?)),
    }
}

/// The answer to one request of several. A new row is its request, with its id and its nonce.
fn allocated(row: &Row, request: Option<&NewTx>) -> Result<Created, StoreError> {
    match (column(row, 0)?, request) {
        ("new", Some(request)) => {
            let id = words::tx_id(column(row, 3)?).map_err(unread)?;
            let nonce = unsigned(column(row, 4)?)?;
            Ok(Created::New(Box::new(Tx::stored(id, request.clone(), Some(nonce)))))
        }
        _ => created(row),
    }
}

impl TxmStore {
    /// Binds the database to the chain, or compares; and makes the row of this process. The schema
    /// is there: see [`super::schema::migrate`].
    ///
    /// # Errors
    /// [`NodeRefusal`].
    pub async fn start(
        address: &Address,
        connecting: &Limits,
        connections_max: usize,
        start: &NodeStart,
    ) -> Result<TxmStore, NodeRefusal> {
        let pool = pool_by_keys(address, connecting, connections_max);
        let genesis = format!("{:#x}", start.genesis);
        let (duration, skew) = (millis(start.lease_duration)?, millis(start.lease_skew)?);
        let params: Params<'_> = &[&bigint(start.chain_id)?, &genesis, &duration, &skew];
        let bound = row(&pool, "SELECT txm.bind($1, $2, $3, $4)", params).await?;
        if let Some(difference) = column::<Option<String>>(&bound, 0)? {
            return Err(NodeRefusal::Bound(difference));
        }
        let sql = "SELECT EXISTS (SELECT FROM txm.nodes n, txm.settings s WHERE n.node_id = $1 \
                   AND n.seen_at > txm.clock() - s.lease_duration)";
        if column(&row(&pool, sql, &[&start.node]).await?, 0)? {
            let node = &start.node;
            warn!(node, "a process with this txm.node_id was seen a moment ago: one name a node");
        }
        let signers: Vec<String> = start.signers.iter().map(address_text).collect();
        let params: Params<'_> = &[&start.node, &start.url, &signers];
        let begun = row(&pool, "SELECT txm.begin($1, $2, $3)", params).await?;
        let limits = start.policies.iter().map(|(signer, policy)| (*signer, outflows(policy)));
        let outflows = start.is_limited.then(|| Arc::new(limits.collect()));
        let queue_max = i64::try_from(start.queue_max).unwrap_or(i64::MAX);
        let me = column(&begun, 0)?;
        let listener = Arc::new(Listener::start(address, connecting, &pool, me));
        Ok(TxmStore { pool, me, outflows, queue_max, listener, witness: None })
    }

    /// Compares the database with the witness in the data directory, and keeps it from now on. A
    /// database that shows less than was seen is an older one: all its signers are suspended.
    ///
    /// # Errors
    /// [`NodeRefusal`].
    pub async fn witnessed(mut self, data_dir: &Path) -> Result<TxmStore, NodeRefusal> {
        // The first migration's time: a copy of the database has the same.
        let sql = "SELECT format('txm of %s', applied_on) FROM txm.migrations WHERE version = 1";
        let database = row(&self.pool, sql, &[]).await?;
        let witness = NodeWitness::open(data_dir, column::<String>(&database, 0)?)?;
        compare(&self.pool, &witness, &witness.signers()).await?;
        self.witness = Some(Arc::new(witness));
        Ok(self)
    }

    /// Keeps the nonces of rows that a commit has answered.
    fn saw_nonces<'a>(&self, signer: Account, txs: impl Iterator<Item = &'a Tx>) {
        if let (Some(witness), Some(nonce)) = (&self.witness, txs.filter_map(|tx| tx.nonce).max()) {
            witness.saw_nonce(signer, nonce.saturating_add(1));
        }
    }

    /// Keeps the nonces of rows that have an attempt.
    fn saw_signed<'a>(&self, signer: Account, txs: impl Iterator<Item = &'a Tx>) {
        let signed = txs.filter(|tx| !tx.attempts.is_empty()).filter_map(|tx| tx.nonce).max();
        if let (Some(witness), Some(nonce)) = (&self.witness, signed) {
            witness.saw_signed(signer, nonce.saturating_add(1));
        }
    }

    /// The number of this process, for ever.
    pub fn incarnation(&self) -> u64 {
        u64::try_from(self.me).expect("a sequence rises from 1")
    }

    /// The connections of this store, for [`TxmReads`](super::reads::TxmReads) too.
    pub fn pool(&self) -> &Connections {
        &self.pool
    }

    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        rows(&self.pool, sql, params).await
    }

    /// Tells a signer's owner of a row that is stored. It is a transaction of its own: within that
    /// of the row, all commits would wait for each other. If it is lost, the owner looks by time.
    async fn tell(&self, signer: &str) {
        if let Err(error) = self.rows("SELECT pg_notify('txm', $1)::text", &[&signer]).await {
            debug!(signer, %error, "the owner was not told of a row");
        }
    }
}

/// Compares the database with the numbers that were seen, and enters its epoch. One that shows
/// less has all its signers suspended behind this.
async fn compare(
    pool: &Connections,
    witness: &NodeWitness,
    seen: &BTreeMap<String, SeenSigner>,
) -> Result<(), StoreError> {
    let seen = serde_json::to_string(seen).map_err(|error| StoreError::Away(error.to_string()))?;
    let sql = "SELECT epoch, known, difference FROM txm.compare_seen($1::text::jsonb)";
    let row = row(pool, sql, &[&seen]).await?;
    witness.enter(unsigned(column(&row, 0)?)?, &column::<Vec<&str>>(&row, 1)?);
    if let Some(difference) = column::<Option<&str>>(&row, 2)? {
        metrics::counter!("ubscore_tx_alert_total", "alert" => "DATABASE_RESTORED").increment(1);
        error!(difference, "DATABASE_RESTORED: the database is older than this node has seen");
    }
    Ok(())
}

impl TxStore for TxmStore {
    async fn acquire(&self, signer: Account) -> Result<Acquired, StoreError> {
        if let Some(witness) = &self.witness {
            compare(&self.pool, witness, &witness.signer(signer)).await?;
        }
        let name = address_text(&signer);
        let rows = self.rows("SELECT * FROM txm.acquire($1, $2)", &[&name, &self.me]).await?;
        let Some(row) = rows.first() else { return Ok(Acquired::Unknown) };
        match column::<Option<i64>>(row, 0)? {
            Some(token) => {
                let token = unsigned(token)?;
                if let Some(witness) = &self.witness {
                    witness.saw_token(signer, token);
                }
                Ok(Acquired::Mine(Lease { signer, token }))
            }
            None => Ok(Acquired::Other(OtherOwner { node: column(row, 1)?, url: column(row, 2)? })),
        }
    }

    async fn owner_of(&self, signer: Account) -> Result<SignerOwner, StoreError> {
        let sql = "SELECT n.node_id, n.url FROM txm.signers s \
                   LEFT JOIN txm.signer_lease l ON l.signer = s.signer AND txm.alive(l.expires_at) \
                   LEFT JOIN txm.nodes n ON n.incarnation = l.owner_incarnation \
                   WHERE s.signer = $1";
        let rows = self.rows(sql, &[&address_text(&signer)]).await?;
        let Some(row) = rows.first() else { return Ok(SignerOwner::Unknown) };
        match column::<Option<String>>(row, 0)? {
            Some(node) => Ok(SignerOwner::Node(OtherOwner { node, url: column(row, 1)? })),
            None => Ok(SignerOwner::Free),
        }
    }

    async fn renew(&self) -> Result<Vec<Lease>, StoreError> {
        let rows = self.rows("SELECT * FROM txm.renew($1)", &[&self.me]).await?;
        let lease = |row: &Row| {
            let signer = words::account(column(row, 0)?).map_err(unread)?;
            Ok(Lease { signer, token: unsigned(column(row, 1)?)? })
        };
        let mut leases: Vec<Lease> = rows.iter().map(lease).collect::<Result<_, _>>()?;
        leases.sort_by_key(|lease| lease.signer);
        Ok(leases)
    }

    async fn leave(&self) -> Result<(), StoreError> {
        let sql = "UPDATE txm.nodes SET seen_at = '-infinity' WHERE incarnation = $1";
        self.rows(sql, &[&self.me]).await.map(drop)
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let sql = "SELECT txm.release($1, $2, $3)::text";
        self.rows(sql, &[&signer, &self.me, &token]).await.map(drop)
    }

    async fn wanting(&self, most: u32) -> Result<Wanting, StoreError> {
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let sql = "SELECT signers, live_nodes, open_signers, next_end_ms, unowned \
                   FROM txm.wanting($1, $2)";
        let row = row(&self.pool, sql, &[&self.me, &most]).await?;
        let signers: Vec<String> = column(&row, 0)?;
        let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        // It may have ended since its row was read.
        let next_end = column::<Option<i64>>(&row, 3)?;
        let next_end = next_end.map(|ms| u64::try_from(ms).unwrap_or(0));
        let signers = signers.iter().map(|signer| words::account(signer).map_err(unread));
        Ok(Wanting {
            signers: signers.collect::<Result<_, _>>()?,
            live_nodes: count(column(&row, 1)?),
            open_signers: count(column(&row, 2)?),
            next_end: next_end.map(Duration::from_millis),
            unowned: count(column(&row, 4)?),
        })
    }

    async fn open(&self, lease: Lease) -> Result<SignerBook, StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let sql = "SELECT kind, body FROM txm.book($1, $2, $3)";
        let mut book = SignerBook::default();
        for row in self.rows(sql, &[&signer, &self.me, &token]).await? {
            let body: &str = column(&row, 1)?;
            let number = || {
                body.parse::<u64>().map_err(|_unread| StoreError::Unknown(format!("nonce {body}")))
            };
            match column(&row, 0)? {
                "suspended" => book.suspensions.push(suspension(body)?),
                "cursor" => book.cursor = number()?,
                "tx" => book.txs.push(words::tx(body).map_err(unread)?),
                "jumped" => book.jumped.push(number()?),
                _ => book.commands.extend(words::command(body).map_err(unread)?),
            }
        }
        // One that got its nonce meanwhile was read twice: its later state stands first.
        book.txs.sort_by_key(|tx| tx.nonce.unwrap_or(u64::MAX));
        let mut ids = BTreeSet::new();
        book.txs.retain(|tx| ids.insert(tx.id));
        if let Some(witness) = &self.witness {
            witness.saw_nonce(lease.signer, book.cursor);
        }
        self.saw_signed(lease.signer, book.txs.iter());
        Ok(book)
    }

    async fn arrived(&self, leases: &[Lease], known: &[TxId]) -> Result<Arrived, StoreError> {
        let signers: Vec<String> = leases.iter().map(|lease| address_text(&lease.signer)).collect();
        let known: Vec<String> = known.iter().map(TxId::to_string).collect();
        let sql = "SELECT kind, signer, body FROM txm.arrived($1, $2::text[]::uuid[])";
        let mut arrived = Arrived::default();
        for row in self.rows(sql, &[&signers, &known]).await? {
            let signer = words::account(column(&row, 1)?).map_err(unread)?;
            let body: &str = column(&row, 2)?;
            match column(&row, 0)? {
                "tx" => arrived.txs.push(words::tx(body).map_err(unread)?),
                "expired" => arrived.expired.push((signer, words::tx_id(body).map_err(unread)?)),
                "command" => {
                    let command = words::command(body).map_err(unread)?;
                    arrived.commands.extend(command.map(|command| (signer, command)));
                }
                _ => {
                    let one = suspension(body)?;
                    match arrived.suspended.last_mut().filter(|(last, _)| *last == signer) {
                        Some((_, all)) => all.push(one),
                        None => arrived.suspended.push((signer, vec![one])),
                    }
                }
            }
        }
        Ok(arrived)
    }

    async fn create(
        &self,
        lease: Lease,
        floor: u64,
        requests: &[NewTx],
    ) -> Result<Vec<Created>, StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        if requests.iter().any(|new| new.signer != lease.signer) {
            return Err(StoreError::Away("a request is of another signer".to_owned()));
        }
        let body = Value::Array(requests.iter().map(words::request).collect()).to_string();
        let sql = "SELECT outcome, fields, tx, id, nonce \
                   FROM txm.create($1, $2, $3, $4, $5::text::jsonb, FALSE)";
        let floor = bigint(floor)?;
        let rows = self.rows(sql, &[&signer, &self.me, &token, &floor, &body]).await?;
        let answers =
            rows.iter().enumerate().map(|(place, row)| allocated(row, requests.get(place)));
        let all = answers.collect::<Result<Vec<_>, _>>()?;
        let txs = all.iter().filter_map(|one| match one {
            Created::New(tx) | Created::Known(tx) => Some(&**tx),
            Created::Conflict(_) => None,
        });
        self.saw_nonces(lease.signer, txs);
        answered(requests.len(), all)
    }

    async fn number(
        &self,
        lease: Lease,
        floor: u64,
        ready: &[Ready],
    ) -> Result<Vec<Tx>, StoreError> {
        let (signer, token, floor) =
            (address_text(&lease.signer), bigint(lease.token)?, bigint(floor)?);
        let ids: Vec<String> = ready.iter().map(|one| one.id.to_string()).collect();
        let versions: Vec<i64> =
            ready.iter().map(|one| bigint(one.version)).collect::<Result<_, _>>()?;
        let gas: Vec<i64> = ready.iter().map(|one| bigint(one.gas)).collect::<Result<_, _>>()?;
        let sql = "SELECT txm.number($1, $2, $3, $4, $5::text[]::uuid[], $6, $7)";
        let params: Params<'_> = &[&signer, &self.me, &token, &floor, &ids, &versions, &gas];
        let rows = self.rows(sql, params).await?;
        let tx = |row: &Row| {
            let text: &str = column::<Option<_>>(row, 0)?.ok_or(StoreError::Suspended)?;
            words::tx(text).map_err(unread)
        };
        let txs: Vec<Tx> = rows.iter().map(tx).collect::<Result<_, StoreError>>()?;
        self.saw_nonces(lease.signer, txs.iter());
        Ok(txs)
    }

    async fn fill(
        &self,
        lease: Lease,
        nonces: &[u64],
        is_asked: bool,
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let news = nonces.iter().map(|nonce| words::request(&NewTx::fill(lease.signer, *nonce)));
        let body = Value::Array(news.collect()).to_string();
        let numbers: Vec<i64> =
            nonces.iter().map(|nonce| bigint(*nonce)).collect::<Result<_, _>>()?;
        let sql = "SELECT outcome, tx FROM txm.fill($1, $2, $3, $4, $5::text::jsonb, $6)";
        let params: Params<'_> = &[&signer, &self.me, &token, &numbers, &body, &is_asked];
        let tx = |row: &Row| match column(row, 0)? {
            "suspended" => Err(StoreError::Suspended),
            "none" => Ok(None),
            _ => words::tx(column(row, 1)?).map(Some).map_err(unread),
        };
        answered(
            nonces.len(),
            self.rows(sql, params).await?.iter().map(tx).collect::<Result<_, _>>()?,
        )
    }

    async fn keep(&self, request: &NewTx) -> Result<Created, StoreError> {
        let (signer, body) = (address_text(&request.signer), words::request(request).to_string());
        let sql = "SELECT outcome, fields, tx, is_elsewhere \
                   FROM txm.keep($1, $2, $3::text::jsonb, $4)";
        let params: Params<'_> = &[&signer, &self.me, &body, &self.queue_max];
        let kept = row(&self.pool, sql, params).await?;
        if column(&kept, 3)? {
            self.tell(&signer).await;
        }
        created(&kept)
    }

    fn news(&self) -> Arc<News> {
        self.listener.news()
    }

    async fn find(&self, signer: Account, request_id: &str) -> Result<Option<Tx>, StoreError> {
        let signer = address_text(&signer);
        let sql = "SELECT txm.tx_json(t)::text FROM txm.managed_tx t \
                   WHERE t.signer = $1 AND t.request_id = $2";
        let rows = self.rows(sql, &[&signer, &request_id]).await?;
        rows.first().map(|row| words::tx(column(row, 0)?).map_err(unread)).transpose()
    }

    async fn write(&self, lease: Lease, steps: &[TxStep]) -> Result<Vec<Option<Tx>>, StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let body = Value::Array(steps.iter().map(words::step).collect()).to_string();
        let limits = match &self.outflows {
            Some(limits) => limits.get(&lease.signer).map_or("{}", String::as_str),
            None => "null",
        };
        let sql = "SELECT txm.write($1, $2, $3, $4::text::jsonb, $5::text::jsonb)";
        let rows = self.rows(sql, &[&signer, &self.me, &token, &body, &limits]).await?;
        let tx = |row: &Row| {
            let text: Option<&str> = column(row, 0)?;
            text.map(|text| words::tx(text).map_err(unread)).transpose()
        };
        let rows: Vec<Option<Tx>> = rows.iter().map(tx).collect::<Result<_, _>>()?;
        self.saw_signed(lease.signer, rows.iter().flatten());
        answered(steps.len(), rows)
    }

    async fn suspend(&self, lease: Lease, reason: &str, about: &str) -> Result<(), StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let about = words::printable(about);
        let sql = "SELECT txm.suspend($1, $2, $3, $4, $5)::text";
        self.rows(sql, &[&signer, &self.me, &token, &reason, &about]).await.map(drop)
    }

    async fn commanded(
        &self,
        lease: Lease,
        command: u64,
        refused: Option<&str>,
    ) -> Result<(), StoreError> {
        let (signer, token) = (address_text(&lease.signer), bigint(lease.token)?);
        let command = bigint(command)?;
        let sql = "SELECT txm.commanded($1, $2, $3, $4, $5)::text";
        self.rows(sql, &[&signer, &self.me, &token, &command, &refused]).await.map(drop)
    }
}

/// The answers, one a question. Another number of them proves nothing about any.
fn answered<T>(asked: usize, answers: Vec<T>) -> Result<Vec<T>, StoreError> {
    if answers.len() == asked {
        return Ok(answers);
    }
    Err(StoreError::Unknown(format!("{} answers to {asked}", answers.len())))
}
