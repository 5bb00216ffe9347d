//! The questions of the listener, and the writes that any node may do: signers, suspensions,
//! commands. None of them is fenced.

use std::collections::BTreeMap;

use alloy_primitives::Address as Account;
use chain::payload::address_text;
use chain::tx::{Tx, TxId};
use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use txm::store::{StoreError, Suspension};
use uuid::Uuid;

use super::call::{Params, bigint, column, row, rows, unread, unsigned};
use super::details::{
    Adoption, CancelByRequest, CommandState, Deed, FeedCursor, FeedEvent, NewCommand, SignerKind,
    SignerRow, ToAdopt, TxDetails, TxEventKind, TxListFilter, TxPage, Verdict,
};
use super::rows as words;
use crate::postgres::{Address, Connections, Limits, pool_by_keys};

/// The most requests of one query.
pub const QUERY_MAX: usize = 100;

/// The most rows of a page.
pub const PAGE_MAX: u32 = 500;

const SIGNERS: &str = "\
    SELECT s.signer, s.kind, txm.ms(s.added_at), c.next_nonce, COALESCE(l.fencing_token, 0), \
           CASE WHEN txm.alive(l.expires_at) THEN n.node_id END, \
           CASE WHEN txm.alive(l.expires_at) THEN n.url END, \
           (SELECT count(*) FROM txm.managed_tx t \
             WHERE t.signer = s.signer AND t.final_at IS NULL AND t.state NOT IN (40, -10)), \
           (SELECT txm.ms(min(t.created_at)) FROM txm.managed_tx t \
             WHERE t.signer = s.signer AND t.final_at IS NULL AND t.state NOT IN (40, -10)), \
           ARRAY(SELECT u.reason FROM txm.signer_suspensions u \
                  WHERE u.signer = s.signer ORDER BY u.reason), \
           ARRAY(SELECT u.actor FROM txm.signer_suspensions u \
                  WHERE u.signer = s.signer ORDER BY u.reason), \
           (SELECT COALESCE(sum(j.before_nonce - j.first_nonce - ( \
                       SELECT count(DISTINCT t.nonce) FROM txm.managed_tx t WHERE t.signer = s.signer \
                          AND t.nonce >= j.first_nonce AND t.nonce < j.before_nonce)), 0)::bigint \
              FROM txm.nonce_jumps j WHERE j.signer = s.signer) \
      FROM txm.signers s JOIN txm.signer_nonce_cursor c ON c.signer = s.signer \
      LEFT JOIN txm.signer_lease l ON l.signer = s.signer \
      LEFT JOIN txm.nodes n ON n.incarnation = l.owner_incarnation \
     WHERE $1 IN ('', s.signer) ORDER BY s.signer";

/// Nothing becomes visible behind a place below the oldest running transaction.
const EVENTS: &str = "\
    SELECT e.epoch, e.xid, e.event_id, e.tx_id::text, e.seq, e.kind, e.new_fork, e.body::text, \
           txm.ms(e.at) \
      FROM txm.tx_events e \
     WHERE (e.epoch, e.xid, e.event_id) > ($1, $2, $3) \
       AND (e.epoch, e.xid) < ((SELECT epoch FROM txm.settings), \
                               pg_snapshot_xmin(pg_current_snapshot())::text::bigint) \
     ORDER BY e.epoch, e.xid, e.event_id LIMIT $4";

/// The rows of the manager, for any node.
#[derive(Clone)]
pub struct TxmReads {
    pool: Connections,
}

/// The smallest id of a moment: ids of version 7 begin with it.
fn first_id(since_ms: i64) -> Uuid {
    let ms = u128::try_from(since_ms).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(ms << 80)
}

fn details(row: &Row) -> Result<TxDetails, StoreError> {
    words::details(column(row, 0)?).map_err(unread)
}

fn signer(row: &Row) -> Result<SignerRow, StoreError> {
    let kind: &str = column(row, 1)?;
    let kind = SignerKind::from_name(kind)
        .ok_or_else(|| StoreError::Unknown(format!("a signer has kind {kind}")))?;
    let (reasons, actors): (Vec<String>, Vec<String>) = (column(row, 9)?, column(row, 10)?);
    let suspensions = reasons.into_iter().zip(actors);
    Ok(SignerRow {
        signer: words::account(column(row, 0)?).map_err(unread)?,
        kind,
        suspensions: suspensions.map(|(reason, actor)| Suspension { reason, actor }).collect(),
        owner: column(row, 5)?,
        owner_url: column(row, 6)?,
        token: unsigned(column(row, 4)?)?,
        cursor: unsigned(column(row, 3)?)?,
        open_rows: unsigned(column(row, 7)?)?,
        oldest_ms: column(row, 8)?,
        jumped: unsigned(column(row, 11)?)?,
        added_ms: column(row, 2)?,
    })
}

fn event(row: &Row) -> Result<FeedEvent, StoreError> {
    let body: Value =
        serde_json::from_str(column(row, 7)?).map_err(|error| unread(error.into()))?;
    let member = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let kind = match column(row, 5)? {
        "confirmations" => TxEventKind::Confirmations,
        _ => TxEventKind::State,
    };
    let seq: i32 = column(row, 4)?;
    Ok(FeedEvent {
        cursor: FeedCursor {
            epoch: unsigned(column(row, 0)?)?,
            xid: unsigned(column(row, 1)?)?,
            event: unsigned(column(row, 2)?)?,
        },
        tx: words::tx_id(column(row, 3)?).map_err(unread)?,
        signer: words::account(&member("signer")).map_err(unread)?,
        request_id: member("requestId"),
        seq: seq.unsigned_abs(),
        kind,
        new_fork: column(row, 6)?,
        at_ms: column(row, 8)?,
        receipt: words::receipt(&body["receipt"]).map_err(unread)?,
        body,
    })
}

impl TxmReads {
    /// Over any pool.
    pub fn new(pool: Connections) -> TxmReads {
        TxmReads { pool }
    }

    /// Over a pool of its own, at most `connections_max` connections: the clients' questions take
    /// none from the fenced store.
    pub fn start(address: &Address, limits: &Limits, connections_max: usize) -> TxmReads {
        TxmReads::new(pool_by_keys(address, limits, connections_max))
    }

    async fn rows(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        rows(&self.pool, sql, params).await
    }

    async fn row(&self, sql: &str, params: Params<'_>) -> Result<Row, StoreError> {
        row(&self.pool, sql, params).await
    }

    /// A transaction with its history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, id: TxId) -> Result<Option<TxDetails>, StoreError> {
        let sql = "SELECT txm.details_json(t, TRUE)::text FROM txm.managed_tx t \
                   WHERE t.tx_id = $1::text::uuid";
        let rows = self.rows(sql, &[&id.to_string()]).await?;
        rows.first().map(details).transpose()
    }

    /// The transaction of a request, with its history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn by_request(
        &self,
        signer: Account,
        request_id: &str,
    ) -> Result<Option<TxDetails>, StoreError> {
        let sql = "SELECT txm.details_json(t, TRUE)::text FROM txm.managed_tx t \
                   WHERE t.signer = $1 AND t.request_id = $2";
        let rows = self.rows(sql, &[&address_text(&signer), &request_id]).await?;
        rows.first().map(details).transpose()
    }

    /// One answer a request, in their order; without histories. At most [`QUERY_MAX`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn query(
        &self,
        requests: &[(Account, String)],
    ) -> Result<Vec<Option<TxDetails>>, StoreError> {
        let sql = "SELECT (SELECT txm.details_json(t, FALSE)::text FROM txm.managed_tx t \
                            WHERE t.signer = q.signer AND t.request_id = q.request_id) \
                     FROM unnest($1::text[], $2::text[]) WITH ORDINALITY q (signer, request_id, place) \
                    ORDER BY q.place";
        let signers: Vec<String> = requests.iter().map(|(one, _)| address_text(one)).collect();
        let ids: Vec<&str> = requests.iter().map(|(_, id)| id.as_str()).collect();
        let rows = self.rows(sql, &[&signers, &ids]).await?;
        let found = |row: &Row| {
            let text: Option<&str> = column(row, 0)?;
            text.map(|text| words::details(text).map_err(unread)).transpose()
        };
        rows.iter().map(found).collect()
    }

    /// A part of the transactions, the newest first. At most [`PAGE_MAX`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(&self, filter: &TxListFilter) -> Result<TxPage, StoreError> {
        let signer = filter.signer.as_ref().map(address_text);
        let since = filter.since_ms.map(|since| first_id(since).to_string());
        let below = filter.below.map(|below| below.to_string());
        let state = filter.state.map(|state| state.number());
        let limit = i64::from(filter.limit.clamp(1, PAGE_MAX));
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&limit];
        let mut wanted = String::from("TRUE");
        // A condition that is not asked for would keep the index from being used.
        let parts: [(Option<&(dyn ToSql + Sync)>, &str, &str); 4] = [
            (signer.as_ref().map(|one| one as _), "t.signer =", ""),
            (since.as_ref().map(|one| one as _), "t.tx_id >=", "::text::uuid"),
            (below.as_ref().map(|one| one as _), "t.tx_id <", "::text::uuid"),
            (state.as_ref().map(|one| one as _), "t.state =", ""),
        ];
        for (value, condition, cast) in parts {
            if let Some(value) = value {
                params.push(value);
                wanted.push_str(&format!(" AND {condition} ${}{cast}", params.len()));
            }
        }
        if filter.state.is_some_and(|state| !state.is_terminal()) {
            // An open row is never final: the index of open rows serves.
            wanted.push_str(" AND t.final_at IS NULL");
        }
        let sql = format!(
            "SELECT txm.details_json(t, FALSE)::text FROM txm.managed_tx t WHERE {wanted} \
             ORDER BY t.tx_id DESC LIMIT $1"
        );
        let rows = self.rows(&sql, &params).await?;
        let txs: Vec<TxDetails> = rows.iter().map(details).collect::<Result<_, _>>()?;
        let is_full = i64::try_from(txs.len()).is_ok_and(|count| count == limit);
        let next = txs.last().filter(|_| is_full).map(|last| last.tx.id);
        Ok(TxPage { txs, next })
    }

    /// All signers, by address.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn signers(&self) -> Result<Vec<SignerRow>, StoreError> {
        self.rows(SIGNERS, &[&""]).await?.iter().map(signer).collect()
    }

    /// One signer.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn signer(&self, address: Account) -> Result<Option<SignerRow>, StoreError> {
        let rows = self.rows(SIGNERS, &[&address_text(&address)]).await?;
        rows.first().map(signer).transpose()
    }

    /// The rows of a signer with a nonce from `first` up to `before`, without it, by nonce; and the
    /// jumps over nonces there, each with the same two bounds.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn nonces(
        &self,
        signer: Account,
        first: u64,
        before: u64,
    ) -> Result<(Vec<Tx>, Vec<(u64, u64)>), StoreError> {
        let (name, first, before) = (address_text(&signer), bigint(first)?, bigint(before)?);
        let params: Params<'_> = &[&name, &first, &before];
        let sql = "SELECT txm.details_json(t, FALSE)::text FROM txm.managed_tx t \
                   WHERE t.signer = $1 AND t.nonce >= $2 AND t.nonce < $3 \
                   ORDER BY t.nonce, t.code IS NOT DISTINCT FROM 6 DESC";
        let rows = self.rows(sql, params).await?;
        let txs = rows.iter().map(|row| details(row).map(|it| it.tx)).collect::<Result<_, _>>()?;
        let sql = "SELECT j.first_nonce, j.before_nonce FROM txm.nonce_jumps j \
                   WHERE j.signer = $1 AND j.before_nonce > $2 AND j.first_nonce < $3 \
                   ORDER BY j.first_nonce";
        let jumps = self.rows(sql, params).await?;
        let jump = |row: &Row| -> Result<(u64, u64), StoreError> {
            Ok((unsigned(column(row, 0)?)?, unsigned(column(row, 1)?)?))
        };
        Ok((txs, jumps.iter().map(jump).collect::<Result<_, _>>()?))
    }

    /// The events behind a place, in the order of the feed, at most `limit`. Nothing becomes
    /// visible behind a place that a page has passed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn events(
        &self,
        after: FeedCursor,
        limit: u32,
    ) -> Result<Vec<FeedEvent>, StoreError> {
        let (epoch, xid, event_id) =
            (bigint(after.epoch)?, bigint(after.xid)?, bigint(after.event)?);
        let limit = i64::from(limit);
        let rows = self.rows(EVENTS, &[&epoch, &xid, &event_id, &limit]).await?;
        rows.iter().map(event).collect()
    }

    /// Adds a signer with its next nonce; `false`: it is there already, and nothing changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn add_signer(
        &self,
        signer: Account,
        kind: SignerKind,
        cursor: u64,
        deed: &Deed<'_>,
    ) -> Result<bool, StoreError> {
        let (name, cursor) = (address_text(&signer), bigint(cursor)?);
        let params: Params<'_> = &[&name, &kind.name(), &cursor, &deed.actor, &deed.reason];
        let sql = "SELECT txm.add_signer($1, $2, $3, $4, $5)";
        column(&self.row(sql, params).await?, 0)
    }

    /// Adds a suspension; `false`: it is there already. `suspension.reason` is its key.
    ///
    /// # Errors
    /// [`StoreError`]. `Away`: also an unknown signer.
    pub async fn suspend(
        &self,
        signer: Account,
        suspension: &Suspension,
        about: &str,
    ) -> Result<bool, StoreError> {
        let name = address_text(&signer);
        let params: Params<'_> = &[&name, &suspension.reason, &suspension.actor, &about];
        column(&self.row("SELECT txm.suspended($1, $2, $3, $4)", params).await?, 0)
    }

    /// Lifts a suspension; `false`: it is not there. The caller has checked the right to. Those of
    /// an outflow, of a chain ahead and of a restore stay: see [`TxmReads::ask_resume`] and
    /// [`TxmReads::ask_adopt`].
    ///
    /// # Errors
    /// [`StoreError`]. `Away`: also one that wants two operators.
    pub async fn resume(
        &self,
        signer: Account,
        reason: &str,
        deed: &Deed<'_>,
    ) -> Result<bool, StoreError> {
        let name = address_text(&signer);
        let params: Params<'_> = &[&name, &reason, &deed.actor, &deed.reason];
        column(&self.row("SELECT txm.resume($1, $2, $3, $4)", params).await?, 0)
    }

    /// Asks to lift a suspension that two operators must lift, and returns the command that
    /// [`TxmReads::second`] carries out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ask_resume(
        &self,
        signer: Account,
        reason: &str,
        deed: &Deed<'_>,
    ) -> Result<u64, StoreError> {
        self.ask(signer, None, "resume", &json!({ "reason": reason }), deed).await
    }

    /// Everything of a signer that an adoption must name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn to_adopt(&self, signer: Account) -> Result<ToAdopt, StoreError> {
        let sql = "SELECT seen, lost, filling, waiting FROM txm.to_adopt($1)";
        let row = self.row(sql, &[&address_text(&signer)]).await?;
        let lost: Vec<i64> = column(&row, 1)?;
        Ok(ToAdopt {
            seen: column::<Option<i64>>(&row, 0)?.map(unsigned).transpose()?,
            lost: lost.into_iter().map(unsigned).collect::<Result<_, _>>()?,
            filling: unsigned(column(&row, 2)?)?,
            waiting: column(&row, 3)?,
        })
    }

    /// Asks to move the cursor to the chain's count, and to lift the suspensions of a chain ahead
    /// and of a restore. Returns the command that [`TxmReads::second`] carries out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ask_adopt(
        &self,
        signer: Account,
        adoption: &Adoption,
        deed: &Deed<'_>,
    ) -> Result<u64, StoreError> {
        let Adoption { cursor, foreign, imports, pays, drops, rest } = adoption;
        let foreign: BTreeMap<String, String> =
            foreign.iter().map(|(nonce, hash)| (nonce.to_string(), format!("{hash:#x}"))).collect();
        let imports = imports.iter().map(|(nonce, it)| (nonce.to_string(), words::import(it)));
        let imports: BTreeMap<String, Value> = imports.collect();
        let body = json!({
            "cursor": cursor, "foreign": foreign, "import": imports, "pay": pays, "drop": drops,
            "rest": rest.map(Verdict::name),
        });
        self.ask(signer, None, "adopt", &body, deed).await
    }

    /// Stores a command, and returns its id. A `Resolve` waits for a second operator.
    ///
    /// # Errors
    /// [`StoreError`]. `Away`: also a row that is none of this signer.
    pub async fn command(&self, command: &NewCommand<'_>) -> Result<u64, StoreError> {
        let (what, body) = words::command_parts(&command.wish);
        self.ask(command.signer, command.tx, what, &body, &command.deed).await
    }

    async fn ask(
        &self,
        signer: Account,
        tx: Option<TxId>,
        what: &str,
        body: &Value,
        deed: &Deed<'_>,
    ) -> Result<u64, StoreError> {
        let (name, tx, body) =
            (address_text(&signer), tx.map(|tx| tx.to_string()), body.to_string());
        let params: Params<'_> = &[&name, &tx, &what, &body, &deed.actor, &deed.reason];
        let sql = "SELECT txm.command($1, $2::text::uuid, $3, $4::text::jsonb, $5, $6)";
        unsigned(column(&self.row(sql, params).await?, 0)?)
    }

    /// Seconds a command; `false`: it does not wait for this, or `actor` is its first operator.
    ///
    /// # Errors
    /// [`StoreError`]. `Away`: also an adopt that leaves a nonce out.
    pub async fn second(&self, command: u64, actor: &str) -> Result<bool, StoreError> {
        let command = bigint(command)?;
        column(&self.row("SELECT txm.second($1, $2)", &[&command, &actor]).await?, 0)
    }

    /// Where a command stands; `None`: unknown.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn command_state(&self, command: u64) -> Result<Option<CommandState>, StoreError> {
        let sql = "SELECT state, refusal FROM txm.tx_commands WHERE command_id = $1";
        let rows = self.rows(sql, &[&bigint(command)?]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let refusal: Option<String> = column(row, 1)?;
        Ok(Some(match column::<i16>(row, 0)? {
            0 => CommandState::Unseconded,
            1 => CommandState::Open,
            2 => CommandState::Done,
            _ => CommandState::Refused(refusal.unwrap_or_default()),
        }))
    }

    /// Cancels by the client's id. An unknown one is stored as FAILED REFUSED.
    ///
    /// # Errors
    /// [`StoreError`]. `Unknown`: ask again.
    pub async fn cancel_by_request(
        &self,
        signer: Account,
        request_id: &str,
        deed: &Deed<'_>,
    ) -> Result<CancelByRequest, StoreError> {
        let name = address_text(&signer);
        let params: Params<'_> = &[&name, &request_id, &deed.actor, &deed.reason];
        let sql = "SELECT is_new, command, details FROM txm.cancel_by_request($1, $2, $3, $4)";
        let row = self.row(sql, params).await?;
        let details = Box::new(words::details(column(&row, 2)?).map_err(unread)?);
        let command: Option<i64> = column(&row, 1)?;
        Ok(match (column(&row, 0)?, command) {
            (true, _) => CancelByRequest::Refused(details),
            (false, Some(command)) => {
                CancelByRequest::Asked { details, command: unsigned(command)? }
            }
            (false, None) => CancelByRequest::Ended(details),
        })
    }
}
