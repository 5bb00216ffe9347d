//! The laws. Each panic names the one that is broken.

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::Transaction as _;
use alloy_consensus::TxEnvelope;
use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::Decodable2718 as _;
use alloy_primitives::{Address, Bytes, U256, keccak256};
use chain::decide::{Effect, TxStep};
use chain::state::{AttemptKind, TxState};
use chain::tx::{Attempt, FailCode, Proof, Tx, TxId};
use uuid::Uuid;

use super::base::{Base, Row};

/// The id of the row that was made as the number `made`: the form of version 7, in their order.
pub(super) fn id(made: u64) -> TxId {
    TxId(Uuid::from_u128((u128::from(made) << 80) | 0x7000_8000_0000_0000_0000))
}

/// Judges a step against the row that it changes. `admits_any_bytes`: attempts need not be
/// transactions of the chain.
pub(super) fn step(old: &Tx, step: &TxStep, admits_any_bytes: bool) {
    let (new, id) = (&step.tx, old.id);
    assert!(!old.is_final, "CL6: {id} is final, and changes");
    if old.state.is_terminal() {
        // The durations of a reader are no part of the row.
        let (version, sent_since, resubmit_in) = (new.version, new.sent_since, new.resubmit_in);
        let marked = Tx { version, sent_since, resubmit_in, is_final: true, ..old.clone() };
        assert_eq!(*new, marked, "CL6: {id} is terminal, and changes");
        return;
    }
    assert_eq!(old.new, new.new, "CL2: the request of {id} changes");
    assert_eq!(old.nonce, new.nonce, "CL2: the nonce of {id} changes");
    let passes = old.state == new.state || old.state.leads_to(new.state);
    assert!(passes, "{id}: from {:?} to {:?}", old.state, new.state);
    let numbers = old.state == TxState::Created && new.state == TxState::Allocated;
    assert!(!numbers, "CL2: {id} gets its nonce by a step");
    assert!(!new.is_final || new.state.is_terminal(), "CL6: {id} in {:?}", new.state);
    attempts(old, step, admits_any_bytes);
    assert!(new.fork >= old.fork, "the fork of {id} falls");
    let goes_on = new.fork > old.fork || new.told.starts_with(&old.told);
    assert!(goes_on, "{id}: confirmations of fork {} are taken back", new.fork);
    if new.state.is_terminal() {
        end(new);
    }
}

fn attempts(old: &Tx, step: &TxStep, admits_any_bytes: bool) {
    let (new, id) = (&step.tx, old.id);
    let added = usize::from(step.is_new_attempt);
    assert_eq!(new.attempts.len(), old.attempts.len() + added, "CL3: the attempts of {id}");
    for (old, new) in old.attempts.iter().zip(&new.attempts) {
        let stored = |it: &Attempt| (it.number, it.kind, it.raw.clone(), it.hash, it.price, it.gas);
        assert_eq!(stored(old), stored(new), "CL3: a stored attempt of {id} changes");
        assert!(new.was_in_pool || !old.was_in_pool, "an attempt of {id} was in a pool");
    }
    if let Some(attempt) = new.attempts.last().filter(|_| step.is_new_attempt) {
        assert_eq!(attempt.number as usize, new.attempts.len(), "CL3: attempts of {id} in order");
        if !admits_any_bytes {
            attempt_of(new, attempt);
        }
    }
    assert_eq!(new.attempts.is_empty(), !may_be_sent(new), "CL3: {id} in {:?}", new.state);
    for effect in &step.effects {
        if let Effect::Send { attempt } = effect {
            let is_stored = new.attempts.iter().any(|it| it.number == *attempt);
            assert!(is_stored, "CL3: attempt {attempt} of {id} is sent, and is not stored");
        }
    }
}

/// Whether a row's attempts may be on the network. The others have none.
fn may_be_sent(tx: &Tx) -> bool {
    match tx.state {
        TxState::Created | TxState::Allocated => false,
        TxState::Submitted | TxState::Tracking | TxState::Confirmed => true,
        TxState::Failed => tx.nonce.is_some(),
    }
}

/// Judges the signed bytes of an attempt: they are of its row's nonce, and pay its payload or
/// no other account.
fn attempt_of(tx: &Tx, attempt: &Attempt) {
    let (id, number) = (tx.id, attempt.number);
    assert_eq!(keccak256(&attempt.raw), attempt.hash, "CL4: the hash of attempt {number} of {id}");
    let mut rest: &[u8] = &attempt.raw;
    let signed = TxEnvelope::decode_2718(&mut rest).expect("CL4: an attempt is a transaction");
    assert!(rest.is_empty(), "CL4: bytes behind attempt {number} of {id}");
    let from = signed.recover_signer().expect("CL4: an attempt has a signature");
    let (to, value, data) = match attempt.kind.pays() {
        true => tx.new.payload.call(),
        false => (tx.new.signer, U256::ZERO, Bytes::new()),
    };
    let wanted = (tx.new.signer, tx.nonce, Some(to), value, data, attempt.gas);
    let found = (
        from,
        Some(signed.nonce()),
        signed.to(),
        signed.value(),
        signed.input().clone(),
        signed.gas_limit(),
    );
    assert_eq!(found, wanted, "CL4: attempt {number} of {id}");
}

/// Judges an end: only the chain ends a row that has a nonce.
fn end(tx: &Tx) {
    let id = tx.id;
    let Some(_) = tx.nonce else {
        let code = tx.code.expect("CL5: a row without a nonce only fails");
        let without = matches!(code, FailCode::Refused | FailCode::Expired | FailCode::Cancelled);
        assert!(without && tx.attempts.is_empty(), "CL5: {id} ends by {code:?} without a nonce");
        return;
    };
    if tx.code == Some(FailCode::NonceTaken) {
        assert_eq!(tx.receipt, None, "CL5: {id} is taken, and has a receipt");
        return;
    }
    let receipt = tx.receipt.expect("CL5: an end without a receipt");
    let mined = tx.attempts.iter().find(|attempt| attempt.number == receipt.attempt);
    let mined = mined.expect("CL5: the receipt is of no attempt");
    assert_eq!(mined.hash, receipt.hash, "CL5: the receipt of {id} is of another transaction");
    let fits = match (tx.state, tx.code, receipt.proof) {
        (TxState::Confirmed, None, Proof::Paid | Proof::Unproven) => mined.kind.pays(),
        (TxState::Failed, Some(FailCode::Reverted), Proof::Reverted) => mined.kind.pays(),
        (TxState::Failed, Some(FailCode::Unproven), Proof::Unproven) => mined.kind.pays(),
        (TxState::Failed, Some(FailCode::Cancelled), _) => mined.kind == AttemptKind::Cancel,
        (TxState::Failed, Some(FailCode::Filled), _) => mined.kind == AttemptKind::Fill,
        _ => false,
    };
    assert!(fits, "CL5: {id} ends as {:?} {:?} by {:?}", tx.state, tx.code, receipt.proof);
}

impl Base {
    /// Judges everything that is stored.
    pub(super) fn check(&self) {
        let mut owners: BTreeMap<(Address, u64), u64> = BTreeMap::new();
        let mut keys: BTreeSet<&String> = BTreeSet::new();
        for row in self.rows.values() {
            row_alone(row);
            let signer = row.tx.new.signer;
            for passage in &row.passages {
                let Some(token) = passage.token else { continue };
                let owner = *owners.entry((signer, token)).or_insert(passage.incarnation);
                assert_eq!(owner, passage.incarnation, "CL1: token {token} has two owners");
            }
            if let Some(key) = &row.tx.new.business_key {
                assert!(keys.insert(key), "CL7: {key} has two rows");
            }
            for attempt in &row.tx.attempts {
                let kept = self.by_hash.get(&attempt.hash);
                assert_eq!(kept, Some(&(row.tx.id, attempt.number)), "CL4: {}", attempt.hash);
            }
        }
        for (signer, row) in &self.signers {
            for nonce in row.first..row.cursor {
                let has_row = self.by_nonce.contains_key(&(*signer, nonce));
                let is_jumped = row.jumped.contains(&nonce);
                assert!(has_row != is_jumped, "CL2: nonce {nonce} of {signer} is a hole");
            }
        }
        for ((signer, nonce), id) in &self.by_nonce {
            let (cursor, tx) = (self.signers[signer].cursor, &self.rows[id].tx);
            assert!(*nonce < cursor, "CL2: nonce {nonce} of {signer} is above the cursor");
            assert_eq!((tx.new.signer, tx.nonce), (*signer, Some(*nonce)), "CL2: {id}");
        }
    }

    /// Judges bytes that left.
    pub(super) fn check_sent(&self, raw: &Bytes) {
        let mut attempts = self.rows.values().flat_map(|row| &row.tx.attempts);
        assert!(attempts.any(|attempt| attempt.raw == *raw), "CL3: {raw} is not stored");
    }
}

fn row_alone(row: &Row) {
    let id = row.tx.id;
    for pair in row.passages.windows(2) {
        let (before, behind) = (pair[0], pair[1]);
        assert!(!before.state.is_terminal(), "CL6: {id} changes behind {:?}", before.state);
        assert!(before.version < behind.version, "the versions of {id} rise");
        let fell = before.token.zip(behind.token).is_some_and(|(old, new)| new < old);
        assert!(!fell, "CL1: the token of {id} falls");
    }
    if row.tx.state.is_terminal() {
        end(&row.tx);
    }
}
