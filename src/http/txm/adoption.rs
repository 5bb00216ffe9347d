//! Mined transactions that a database has forgotten: read from their own signed bytes, and matched
//! with the requests that they pay; and the names that an adoption must give.

use std::collections::BTreeMap;

use alloy_primitives::{Address, keccak256};
use chain::payload::TxPayload;
use chain::state::TxState;
use chain::tx::{FailCode, NewTx};
use domain::code::Code;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::body::ImportDraft;
use super::{TxmService, store_away};
use crate::http::refusal::{Refusal, invalid};
use crate::postgres::txm::details::{Adoption, ToAdopt, TxImport};

/// The most requests that a refusal names.
const NAMED_MAX: usize = 20;
/// The questions of one adoption to the chain, or to PostgreSQL, at a time.
const QUESTIONS_IN_FLIGHT: usize = 16;

/// The rows of mined transactions, by nonce. Each is one of the signer, as its signature tells.
///
/// # Errors
/// INVALID_REQUEST: not mined, another signer's, or named twice.
pub(super) async fn imports(
    service: &TxmService,
    signer: Address,
    drafts: &[ImportDraft],
) -> Result<BTreeMap<u64, TxImport>, Refusal> {
    let mut imports = BTreeMap::new();
    let asked: Vec<_> = drafts.iter().map(|draft| import(service, signer, draft)).collect();
    let mut found = stream::iter(asked).buffered(QUESTIONS_IN_FLIGHT);
    while let Some((nonce, import)) = found.try_next().await? {
        if imports.insert(nonce, import).is_some() {
            return Err(invalid(format!("import names nonce {nonce} twice.")));
        }
    }
    Ok(imports)
}

async fn import(
    service: &TxmService,
    signer: Address,
    draft: &ImportDraft,
) -> Result<(u64, TxImport), Refusal> {
    let (hash, request_id, business_key) = draft.names()?;
    let Some(mined) = service.desk.mined_by(hash).await else {
        return Err(invalid(format!(
            "import: {hash} is not mined in the view of a quorum, or has another form than ours."
        )));
    };
    let unsigned = mined.unsigned;
    if unsigned.signer != signer || keccak256(&mined.raw) != hash {
        return Err(invalid(format!("import: {hash} is of {:#x}.", unsigned.signer)));
    }
    let (to, value, data) = (unsigned.to, unsigned.value, unsigned.data);
    let mut payload = match draft.data {
        true => TxPayload { to, value, data, token: None, gas: None },
        false => TxPayload::of_call(to, value, data),
    };
    payload.gas = draft.gas.then_some(unsigned.gas);
    let gas = Some(unsigned.gas);
    let new = NewTx { signer, request_id, business_key, payload, gas, deadline_ms: None };
    free(service, &new).await?;
    let price = unsigned.price;
    Ok((unsigned.nonce, TxImport { new, raw: mined.raw, hash, price }))
}

/// Whether the request has no row, or one without a nonce and with the same payload. The store
/// compares again, with its rows locked.
async fn free(service: &TxmService, new: &NewTx) -> Result<(), Refusal> {
    let found = service.reads.by_request(new.signer, &new.request_id).await.map_err(store_away)?;
    let Some(row) = found.map(|details| details.tx) else { return Ok(()) };
    let (stored, gas) = (&row.new, row.new.payload.gas);
    let paid = TxPayload { gas, ..new.payload.clone() };
    let fits = stored.payload == paid && stored.business_key == new.business_key;
    if row.state == TxState::Created && fits && (gas.is_none() || gas == new.gas) {
        return Ok(());
    }
    let message = format!(
        "import: the request {} has the row {}, {}, and is not the one of this transaction.",
        new.request_id,
        row.id,
        row.state.name()
    );
    Err(Refusal::because(Code::DuplicateRequest, message))
}

/// Each nonce that the chain has and no row is named once, a foreign hash is the mined one, and no
/// row holds the nonce of an import. `next`: the next nonce of the rows. The store compares again,
/// with its rows locked.
///
/// # Errors
/// INVALID_REQUEST; SYSTEM_ERROR: the chain or the store is away.
pub(super) async fn name_nonces(
    service: &TxmService,
    signer: Address,
    adoption: &Adoption,
    needs: &ToAdopt,
    next: u64,
) -> Result<(), Refusal> {
    let Adoption { cursor, foreign, imports, .. } = adoption;
    let mut found = stream::iter(imports.keys().copied())
        .map(|nonce| async move { (nonce, service.reads.nonces(signer, nonce, nonce + 1).await) })
        .buffered(QUESTIONS_IN_FLIGHT);
    while let Some((nonce, rows)) = found.next().await {
        let (rows, _) = rows.map_err(store_away)?;
        if rows.iter().any(|row| row.code != Some(FailCode::NonceTaken)) {
            return Err(invalid(format!("import: nonce {nonce} has a row.")));
        }
    }
    for nonce in needs.lost.iter().copied().chain(next..*cursor) {
        let why = match (foreign.get(&nonce), imports.contains_key(&nonce)) {
            (None, false) => "foreign and import lack",
            (Some(_), true) => "foreign and import both have",
            (None, true) => continue,
            (Some(hash), false) => {
                let found = service.desk.mined_with(signer, nonce, vec![*hash]).await;
                match found.ok_or_else(|| Refusal::away("The chain"))?.contains(hash) {
                    true => continue,
                    false => "foreign names another transaction than the mined one at",
                }
            }
        };
        return Err(invalid(format!("{why} nonce {nonce}, which the chain has and no row.")));
    }
    Ok(())
}

/// The suspension stays. Its requests are named when it is lifted: until then others may be known.
///
/// # Errors
/// INVALID_REQUEST: one is named. `nonce`: the count of the chain that ends the suspension.
pub(super) fn name_no_requests(adoption: &Adoption, nonce: u64) -> Result<(), Refusal> {
    if adoption.pays.is_empty() && adoption.drops.is_empty() && adoption.rest.is_none() {
        return Ok(());
    }
    Err(invalid(format!(
        "pay, drop and rest are given with the adoption that lifts the suspension. It stays until \
         the chain has mined the nonces below {nonce}. Leave them out now."
    )))
}

/// Each request without a nonce from before the suspension is named once.
///
/// # Errors
/// INVALID_REQUEST; SYSTEM_ERROR: fills are under way.
pub(super) fn name_requests(adoption: &Adoption, needs: &ToAdopt) -> Result<(), Refusal> {
    let Adoption { imports, pays, drops, rest, .. } = adoption;
    if needs.filling > 0 {
        let message = format!("{} fills are not final yet. Wait for their ends.", needs.filling);
        return Err(Refusal::because(Code::SystemError, message));
    }
    let is_imported = |id: &String| imports.values().any(|it| it.new.request_id == *id);
    let mut named = pays.iter().chain(drops);
    if let Some(id) = named.find(|id| !needs.waiting.contains(id) && !is_imported(id)) {
        return Err(invalid(format!(
            "pay and drop: {id} is none of the requests that wait without a nonce since before the \
             suspension."
        )));
    }
    let waiting = needs.waiting.iter().filter(|id| !is_imported(id));
    let is_unnamed = |id: &&String| match (pays.contains(id), drops.contains(id)) {
        (false, false) => rest.is_none(),
        (is_paid, is_dropped) => is_paid && is_dropped,
    };
    let unnamed: Vec<&str> = waiting.filter(is_unnamed).map(String::as_str).collect();
    if unnamed.is_empty() {
        return Ok(());
    }
    let (count, first) = (unnamed.len(), &unnamed[..unnamed.len().min(NAMED_MAX)]);
    Err(invalid(format!(
        "pay and drop must name each request that has no nonce, once. {count} of them are not: {}. \
         The database that is lost may have ended one. Pay those for which the client still waits.",
        first.join(", ")
    )))
}
