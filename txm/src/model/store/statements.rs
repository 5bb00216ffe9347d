//! The statements about rows. Each is carried out whole, or changes nothing.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256};
use chain::decide::TxStep;
use chain::state::TxState;
use chain::tx::{FailCode, NewTx, Tx, TxId};

use super::base::{Base, CommandEnd, Row};
use super::judge;
use super::{ModelPassage, StoreBug};
use crate::desk::differences;
use crate::store::{
    ARRIVED_MAX, Arrived, BOOK_UNNUMBERED_MAX, Created, Lease, Ready, SignerBook, StoreError,
};

impl Base {
    /// A row as a reader sees it now.
    fn seen(&self, row: &Row) -> Tx {
        let now = self.now();
        let mut tx = row.tx.clone();
        tx.resubmit_in = row.next_resubmit.map(|next| next.since(now));
        tx.sent_since = row.first_sent.map(|sent| now.since(sent));
        tx
    }

    pub(super) fn rows(&self) -> Vec<Tx> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by_key(|row| row.made);
        rows.into_iter().map(|row| self.seen(row)).collect()
    }

    pub(super) fn row(&self, id: TxId) -> Option<Tx> {
        self.rows.get(&id).map(|row| self.seen(row))
    }

    pub(super) fn passages(&self, id: TxId) -> Vec<ModelPassage> {
        self.rows.get(&id).map(|row| row.passages.clone()).unwrap_or_default()
    }

    pub(super) fn jumped(&self, signer: Address) -> Vec<u64> {
        self.signers.get(&signer).map(|row| row.jumped.clone()).unwrap_or_default()
    }

    pub(super) fn attempt(&self, hash: B256) -> Option<(TxId, u32)> {
        self.by_hash.get(&hash).copied()
    }

    pub(super) fn find(&self, signer: Address, request_id: &str) -> Option<Tx> {
        let id = self.by_request.get(&(signer, request_id.to_owned()))?;
        self.row(*id)
    }

    pub(super) fn open(&mut self, lease: Lease, me: u64) -> Result<SignerBook, StoreError> {
        self.fence(lease, me)?;
        let signer = &self.signers[&lease.signer];
        let of_signer = |row: &&Row| row.tx.new.signer == lease.signer;
        let mut rows: Vec<&Row> =
            self.rows.values().filter(of_signer).filter(|row| !row.tx.is_final).collect();
        rows.sort_by_key(|row| (row.tx.nonce.unwrap_or(u64::MAX), row.made));
        let numbered = rows.iter().filter(|row| row.tx.nonce.is_some()).count();
        let has_command = |row: &Row| {
            let mut open = self.commands.values().filter(|it| it.end.is_none());
            open.any(|it| it.command.tx == Some(row.tx.id))
        };
        let mut place = 0;
        rows.retain(|row| {
            place += 1;
            place <= numbered + BOOK_UNNUMBERED_MAX || has_command(row)
        });
        let settled = self.rows.values().filter(of_signer);
        let settled = settled.filter(|row| row.tx.is_final && row.tx.receipt.is_some());
        let settled = settled.filter_map(|row| row.tx.nonce).max();
        let jumped = signer.jumped.iter().copied();
        let commands = self.commands.values();
        let open = commands.filter(|row| row.signer == lease.signer && row.end.is_none());
        Ok(SignerBook {
            suspensions: signer.suspensions.clone(),
            cursor: signer.cursor,
            txs: rows.into_iter().map(|row| self.seen(row)).collect(),
            jumped: jumped.filter(|nonce| settled.is_none_or(|top| *nonce > top)).collect(),
            commands: open.map(|row| row.command.clone()).collect(),
        })
    }

    pub(super) fn arrived(&self, leases: &[Lease], known: &[TxId]) -> Arrived {
        let signers: BTreeSet<Address> = leases.iter().map(|lease| lease.signer).collect();
        let is_new = |row: &&Row| {
            row.tx.state == TxState::Created
                && signers.contains(&row.tx.new.signer)
                && !known.contains(&row.tx.id)
        };
        let mut rows: Vec<&Row> = self.rows.values().filter(is_new).collect();
        rows.sort_by_key(|row| row.made);
        rows.truncate(ARRIVED_MAX);
        let open = self.commands.values();
        let open = open.filter(|row| row.end.is_none() && signers.contains(&row.signer));
        let of = self.signers.iter().filter(|(signer, _)| signers.contains(*signer));
        let suspended = of.filter(|(_, row)| !row.suspensions.is_empty());
        let is_late = |row: &&Row| self.is_late(&row.tx.new);
        let created = self.rows.values().filter(|row| row.tx.state == TxState::Created);
        let late = created.filter(|row| signers.contains(&row.tx.new.signer)).filter(is_late);
        Arrived {
            expired: late.map(|row| (row.tx.new.signer, row.tx.id)).collect(),
            txs: rows.into_iter().map(|row| self.seen(row)).collect(),
            commands: open.map(|row| (row.signer, row.command.clone())).collect(),
            suspended: suspended.map(|(at, row)| (*at, row.suspensions.clone())).collect(),
        }
    }

    fn is_late(&self, new: &NewTx) -> bool {
        let now_ms = i64::try_from(self.origin.elapsed().as_millis()).expect("a short run");
        new.deadline_ms.is_some_and(|at| at <= now_ms)
    }

    /// Refuses a nonce for a suspended signer.
    fn unsuspended(&self, lease: Lease) -> Result<(), StoreError> {
        match self.signers[&lease.signer].suspensions.is_empty() {
            true => Ok(()),
            false => Err(StoreError::Suspended),
        }
    }

    pub(super) fn create(
        &mut self,
        lease: Lease,
        me: u64,
        floor: u64,
        requests: &[NewTx],
    ) -> Result<Vec<Created>, StoreError> {
        self.fence(lease, me)?;
        self.writes_as(lease);
        self.unsuspended(lease)?;
        let mut answers = Vec::new();
        for request in requests {
            assert_eq!(request.signer, lease.signer, "CL1: a request of another signer");
            assert!(!request.is_fill(), "CL2: {} is an id of a fill", request.request_id);
            assert!(request.gas.is_some(), "N5: {} is not prepared", request.request_id);
            answers.push(match self.known(request) {
                Some(known) => known,
                None if self.is_late(request) => {
                    let id = self.insert(request, None, me, Some(lease.token)).id;
                    self.expire(id);
                    Created::Known(Box::new(self.row(id).expect("it was made")))
                }
                None => {
                    let nonce = self.next_nonce(lease.signer, floor);
                    let tx = self.insert(request, Some(nonce), me, Some(lease.token));
                    Created::New(Box::new(tx))
                }
            });
        }
        Ok(answers)
    }

    pub(super) fn keep(&mut self, request: &NewTx, me: u64) -> Result<Created, StoreError> {
        if !self.signers.contains_key(&request.signer) {
            return Err(StoreError::Away("no such signer".to_owned()));
        }
        Ok(match self.known(request) {
            Some(known) => known,
            None => Created::New(Box::new(self.insert(request, None, me, None))),
        })
    }

    pub(super) fn number(
        &mut self,
        lease: Lease,
        me: u64,
        floor: u64,
        ready: &[Ready],
    ) -> Result<Vec<Tx>, StoreError> {
        self.fence(lease, me)?;
        self.writes_as(lease);
        self.unsuspended(lease)?;
        let mut numbered = Vec::new();
        for Ready { id, version, gas } in ready {
            let row = self.rows.get(id).expect("CL2: a row that is not there");
            assert_eq!(row.tx.new.signer, lease.signer, "CL1: a row of another signer");
            let is_open = row.tx.version == *version && row.tx.state == TxState::Created;
            if !is_open && !self.has_bug(StoreBug::NumbersAgain) {
                continue;
            }
            let nonce = self.next_nonce(lease.signer, floor);
            let before = self.by_nonce.insert((lease.signer, nonce), *id);
            assert_eq!(before, None, "CL2: nonce {nonce} has a row");
            let row = self.rows.get_mut(id).expect("looked for above");
            row.tx.nonce = Some(nonce);
            row.tx.new.gas = Some(*gas);
            row.tx.state = TxState::Allocated;
            row.tx.sub = None;
            row.tx.version += 1;
            row.passages.push(passage(&row.tx, me, Some(lease.token)));
            numbered.push(self.row(*id).expect("looked for above"));
        }
        Ok(numbered)
    }

    pub(super) fn fill(
        &mut self,
        lease: Lease,
        me: u64,
        nonces: &[u64],
        is_asked: bool,
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        self.fence(lease, me)?;
        self.writes_as(lease);
        if !is_asked {
            self.unsuspended(lease)?;
        }
        let mut answers = Vec::new();
        for nonce in nonces {
            let new = NewTx::fill(lease.signer, *nonce);
            let known = self.find(lease.signer, &new.request_id);
            let is_jumped = self.jumped(lease.signer).contains(nonce);
            answers.push(match known {
                Some(tx) => Some(tx),
                None if is_jumped || self.has_bug(StoreBug::FillsAnyNonce) => {
                    let row = self.signers.get_mut(&lease.signer).expect("it has a lease");
                    row.jumped.retain(|jumped| jumped != nonce);
                    Some(self.insert(&new, Some(*nonce), me, Some(lease.token)))
                }
                None => None,
            });
        }
        Ok(answers)
    }

    pub(super) fn write(
        &mut self,
        lease: Lease,
        me: u64,
        steps: &[TxStep],
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        self.fence(lease, me)?;
        self.writes_as(lease);
        let ids: BTreeSet<TxId> = steps.iter().map(|step| step.tx.id).collect();
        assert_eq!(ids.len(), steps.len(), "at most one step a row");
        let mut answers = Vec::new();
        for step in steps {
            let row = self.rows.get(&step.tx.id).expect("CL2: a row that is not there");
            assert_eq!(row.tx.new.signer, lease.signer, "CL1: a row of another signer");
            let is_next = row.tx.version + 1 == step.tx.version;
            if !is_next && !self.has_bug(StoreBug::NoVersion) {
                answers.push(None);
                continue;
            }
            let is_taken = step.tx.code == Some(FailCode::NonceTaken);
            let pays = step.is_new_attempt
                && step.tx.attempts.last().is_some_and(|it| it.kind.pays() && !it.was_in_pool);
            if pays && self.unsuspended(lease).is_err() {
                answers.push(None);
                continue;
            }
            judge::step(&row.tx, step, self.admits_any_bytes);
            if is_taken && row.tx.code != step.tx.code && !row.tx.new.is_fill() {
                self.suspend(lease.signer, "NONCE_TAKEN", "txm");
            }
            self.apply(step, me, lease.token);
            answers.push(self.row(step.tx.id));
        }
        Ok(answers)
    }

    /// Ends a row that was made behind its deadline.
    fn expire(&mut self, id: TxId) {
        let row = self.rows.get_mut(&id).expect("it was made");
        (row.tx.state, row.tx.code) = (TxState::Failed, Some(FailCode::Expired));
        row.tx.is_final = true;
        row.passages.iter_mut().for_each(|passage| passage.state = TxState::Failed);
    }

    /// Stores a step that the laws admit.
    fn apply(&mut self, step: &TxStep, me: u64, token: u64) {
        let (now, id) = (self.now(), step.tx.id);
        if let Some(attempt) = step.tx.attempts.last().filter(|_| step.is_new_attempt) {
            let before = self.by_hash.insert(attempt.hash, (id, attempt.number));
            assert_eq!(before, None, "CL4: the hash {} is an attempt already", attempt.hash);
        }
        let row = self.rows.get_mut(&id).expect("it was judged");
        let is_passage = (row.tx.state, row.tx.sub) != (step.tx.state, step.tx.sub);
        row.tx = step.tx.clone();
        row.next_resubmit = step.tx.resubmit_in.map(|time| now.after(time));
        if step.submits {
            row.first_sent.get_or_insert(now);
        }
        if is_passage {
            row.passages.push(passage(&row.tx, me, Some(token)));
        }
    }

    pub(super) fn suspend_fenced(
        &mut self,
        lease: Lease,
        me: u64,
        reason: &str,
    ) -> Result<(), StoreError> {
        self.fence(lease, me)?;
        self.suspend(lease.signer, reason, "txm");
        Ok(())
    }

    pub(super) fn commanded(
        &mut self,
        lease: Lease,
        me: u64,
        command: u64,
        refused: Option<String>,
    ) -> Result<(), StoreError> {
        self.fence(lease, me)?;
        let row = self.commands.get_mut(&command).expect("a command that is there");
        assert_eq!(row.signer, lease.signer, "CL1: a command of another signer");
        row.end.get_or_insert(refused.map_or(CommandEnd::Done, CommandEnd::Refused));
        Ok(())
    }

    /// The answer to a request whose id or business key is there already.
    fn known(&self, request: &NewTx) -> Option<Created> {
        if let Some(tx) = self.find(request.signer, &request.request_id) {
            let fields = differences(&tx.new, request);
            return Some(match fields.is_empty() {
                true => Created::Known(Box::new(tx)),
                false => Created::Conflict(fields),
            });
        }
        let key = request.business_key.as_ref()?;
        let is_used = self.by_business.contains_key(key);
        is_used.then(|| Created::Conflict(vec!["businessKey".to_owned()]))
    }

    /// The next nonce, at least the floor. Those that it passes over are kept as jumped.
    fn next_nonce(&mut self, signer: Address, floor: u64) -> u64 {
        let row = self.signers.get_mut(&signer).expect("it has a lease");
        row.jumped.extend(row.cursor..floor);
        row.cursor = row.cursor.max(floor) + 1;
        row.cursor - 1
    }

    fn insert(&mut self, new: &NewTx, nonce: Option<u64>, me: u64, token: Option<u64>) -> Tx {
        let made = self.rows.len() as u64 + 1;
        let id = judge::id(made);
        let new = NewTx { gas: new.gas.filter(|_| nonce.is_some()), ..new.clone() };
        let tx = Tx::stored(id, new.clone(), nonce);
        if let Some(nonce) = nonce {
            let before = self.by_nonce.insert((new.signer, nonce), id);
            assert_eq!(before, None, "CL2: nonce {nonce} has a row");
        }
        if let Some(key) = &new.business_key {
            let before = self.by_business.insert(key.clone(), id);
            assert_eq!(before, None, "CL7: {key} has a row");
        }
        self.by_request.insert((new.signer, new.request_id.clone()), id);
        let passages = vec![passage(&tx, me, token)];
        let row = Row { tx, made, next_resubmit: None, first_sent: None, passages };
        let seen = self.seen(&row);
        self.rows.insert(id, row);
        seen
    }
}

fn passage(tx: &Tx, incarnation: u64, token: Option<u64>) -> ModelPassage {
    ModelPassage { version: tx.version, state: tx.state, sub: tx.sub, incarnation, token }
}
