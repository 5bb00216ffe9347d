//! Mined transactions that a database has forgotten: read from their own signed bytes, and matched
//! with the requests that they pay.

use std::collections::BTreeMap;

use alloy_primitives::{Address, keccak256};
use chain::payload::TxPayload;
use chain::state::TxState;
use chain::tx::NewTx;
use domain::code::Code;

use super::body::ImportDraft;
use super::{TxmService, store_away};
use crate::http::refusal::{Refusal, invalid};
use crate::postgres::txm::details::TxImport;

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
    for draft in drafts {
        let (nonce, import) = import(service, signer, draft).await?;
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
