//! The audit of a signer's nonces: the chain's transactions against rows and attempts.
//!
//! The chain is asked for each nonce; rows alone prove nothing. Moves between the reads may look
//! like a difference, so a part with one is read again before it is reported.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use chain::payload::address_text;
use chain::state::{AttemptKind, TxState};
use chain::tx::{FailCode, Tx};
use futures_util::future::join_all;
use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::signers::known;
use super::token::TxCaller;
use super::{TxmService, store_away};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal};
use crate::http::request::{Call, number, parameters};

/// The most nonces of one answer: each is a question to every endpoint.
const NONCES_MAX: u64 = 100;
/// The most reads of one part before its differences are reported.
const READS_MAX: u32 = 3;

/// A difference at one nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NonceFinding {
    /// The chain has a transaction, and no row has the nonce.
    NoRow,
    /// The store gave a later nonce, and neither chain nor store has this one.
    Hole,
    /// The chain has a transaction that is no attempt of the row.
    Another,
    /// The nonce is mined, and no endpoint knows its transaction.
    NotFound,
    /// The mined attempt does not fit the state of the row.
    OtherEnd,
    /// The row is at its end, and the nonce is not mined.
    NotMined,
}

impl NonceFinding {
    fn name(self) -> &'static str {
        match self {
            NonceFinding::NoRow => "NO_ROW",
            NonceFinding::Hole => "HOLE",
            NonceFinding::Another => "ANOTHER",
            NonceFinding::NotFound => "NOT_FOUND",
            NonceFinding::OtherEnd => "OTHER_END",
            NonceFinding::NotMined => "NOT_MINED",
        }
    }
}

/// One nonce as store and chain have it.
struct NonceSeen<'a> {
    nonce: u64,
    row: Option<&'a Tx>,
    /// Whether the store passed over it, or two operators adopted it.
    is_jumped: bool,
    /// The chain's count before the rows were read, and behind that.
    mined: (u64, u64),
    /// The hashes of the transactions that endpoints have mined with it.
    found: &'a [B256],
}

impl NonceSeen<'_> {
    fn finding(&self) -> Option<NonceFinding> {
        let Some(row) = self.row else {
            let is_mined = self.nonce < self.mined.0 || !self.found.is_empty();
            let finding = if is_mined { NonceFinding::NoRow } else { NonceFinding::Hole };
            return (!self.is_jumped).then_some(finding);
        };
        let is_own = |hash: &B256| row.attempts.iter().any(|attempt| attempt.hash == *hash);
        let is_taken = row.code == Some(FailCode::NonceTaken);
        if self.found.iter().any(|hash| !is_own(hash)) {
            let is_told = is_taken && !self.found.iter().any(is_own);
            return (!is_told).then_some(NonceFinding::Another);
        }
        let own = row.attempts.iter().find(|attempt| self.found.contains(&attempt.hash));
        match own {
            Some(attempt) => (!fits(row, attempt.kind)).then_some(NonceFinding::OtherEnd),
            None if self.nonce < self.mined.1 => (!is_taken).then_some(NonceFinding::NotFound),
            None => row.state.is_terminal().then_some(NonceFinding::NotMined),
        }
    }
}

/// Whether a row may stand so when an attempt of this kind is mined.
fn fits(row: &Tx, mined: AttemptKind) -> bool {
    let code = row.code;
    match (row.state, mined) {
        (TxState::Created | TxState::Allocated, _) => false,
        (TxState::Submitted | TxState::Tracking, _) => true,
        (TxState::Confirmed, kind) => matches!(kind, AttemptKind::Pay | AttemptKind::Bump),
        (TxState::Failed, AttemptKind::Pay | AttemptKind::Bump) => {
            matches!(code, Some(FailCode::Reverted | FailCode::Unproven))
        }
        (TxState::Failed, AttemptKind::Cancel) => code == Some(FailCode::Cancelled),
        (TxState::Failed, AttemptKind::Fill) => code == Some(FailCode::Filled),
    }
}

/// A difference, for people.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DifferenceBody {
    nonce: u64,
    finding: &'static str,
    tx_id: Option<String>,
    state: Option<&'static str>,
    code: Option<&'static str>,
    attempts: Vec<String>,
    mined: Vec<String>,
}

impl DifferenceBody {
    fn new(seen: &NonceSeen<'_>, finding: NonceFinding) -> DifferenceBody {
        let row = seen.row;
        let attempts = row.map_or(&[][..], |row| row.attempts.as_slice());
        DifferenceBody {
            nonce: seen.nonce,
            finding: finding.name(),
            tx_id: row.map(|row| row.id.to_string()),
            state: row.map(|row| row.state.name()),
            code: row.and_then(|row| row.code).map(FailCode::name),
            attempts: attempts.iter().map(|attempt| attempt.hash.to_string()).collect(),
            mined: seen.found.iter().map(B256::to_string).collect(),
        }
    }
}

/// The result of one part.
struct Part {
    mined: u64,
    cursor: u64,
    /// Up to this one, without it.
    end: u64,
    jumped: Vec<u64>,
    differences: Vec<DifferenceBody>,
}

/// `GET /admin/v1/signers/{signer}/audit?from=&to=`: the nonces from one to another, with both, at
/// most [`NONCES_MAX`]. `next` is the `from` of the next call. Without `to`: to the last one that
/// the chain or the store has.
pub(super) async fn read(service: &TxmService, signer: &str, call: &Call) -> Outcome {
    let caller = TxCaller::of(&service.intake, call)?;
    let signer = known(service, signer).await?;
    caller.may_see(signer)?;
    let [from, to] = parameters(call.request.uri().query().unwrap_or(""), ["from", "to"])?;
    let nonce = |name, text: &str| number(name, text, 0..=u32::MAX).map(u64::from);
    let from = from.map_or(Ok(0), |text| nonce("from", &text))?;
    let to = to.map(|text| nonce("to", &text)).transpose()?;
    let mut part = part(service, signer, from, to).await?;
    for _ in 1..READS_MAX {
        if part.differences.is_empty() {
            break;
        }
        part = self::part(service, signer, from, to).await?;
    }
    let all = part.mined.max(part.cursor);
    let end = to.map_or(all, |to| all.min(to + 1));
    let body = json!({
        "signer": address_text(&signer),
        "mined": part.mined,
        "cursor": part.cursor,
        "checked": part.end.saturating_sub(from),
        "jumped": part.jumped,
        "differences": part.differences,
        "next": (part.end < end).then_some(part.end),
    });
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Compares one part, once.
async fn part(
    service: &TxmService,
    signer: Address,
    from: u64,
    to: Option<u64>,
) -> Result<Part, Refusal> {
    let before = mined(service, signer).await?;
    let row = service.reads.signer(signer).await.map_err(store_away)?;
    let cursor = row.map_or(0, |row| row.cursor);
    let all = before.max(cursor);
    let end = to.map_or(all, |to| all.min(to + 1)).min(from + NONCES_MAX);
    let (rows, jumps) = service.reads.nonces(signer, from, end).await.map_err(store_away)?;
    let rows: BTreeMap<u64, Tx> =
        rows.into_iter().filter_map(|tx| tx.nonce.map(|nonce| (nonce, tx))).collect();
    let after = mined(service, signer).await?;
    let asked = (from..end).map(|nonce| {
        let attempts = rows.get(&nonce).map_or(&[][..], |row| row.attempts.as_slice());
        let hashes = attempts.iter().map(|attempt| attempt.hash).collect();
        service.desk.mined_with(signer, nonce, hashes)
    });
    let found: Option<Vec<Vec<B256>>> = join_all(asked).await.into_iter().collect();
    let found = found.ok_or_else(|| Refusal::away("The chain"))?;
    let (mut jumped, mut differences) = (Vec::new(), Vec::new());
    for (nonce, found) in (from..end).zip(&found) {
        let is_jumped = jumps.iter().any(|(first, before)| (*first..*before).contains(&nonce));
        let row = rows.get(&nonce);
        let seen = NonceSeen { nonce, row, is_jumped, mined: (before, after), found };
        jumped.extend((is_jumped && row.is_none()).then_some(nonce));
        differences.extend(seen.finding().map(|finding| DifferenceBody::new(&seen, finding)));
    }
    Ok(Part { mined: after, cursor, end: end.max(from), jumped, differences })
}

/// The highest count of mined transactions that an endpoint says.
async fn mined(service: &TxmService, signer: Address) -> Result<u64, Refusal> {
    let counts = service.desk.counts(signer).await;
    counts.iter().map(|it| it.latest).max().ok_or_else(|| Refusal::away("The chain"))
}
