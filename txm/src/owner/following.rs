//! Questions to the chain: counts, market, receipts, confirmations, and the lookup of a nonce that
//! another transaction may have.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use alloy_primitives::{B256, Bytes};
use chain::decide::{Signed, TxFact};
use chain::fee::GasMarket;
use chain::proof::{ProofLog, proof};
use chain::state::AttemptKind;
use chain::tx::{Tx, TxId, TxReceipt};
use tokio::time::Instant;

use super::book::{Place, Row, back_off};
use super::{Heard, Owner, TxRefusal};
use crate::crash;
use crate::options::{ExternalUse, Finality};
use crate::rpc::look::Look;
use crate::rpc::pool::Counts;
use crate::rpc::told::ReceiptAnswer;
use crate::rpc::{Endpoint, ReceiptRead, TransactionRead};
use crate::signer::{Signer, codec};
use crate::store::{Suspension, TxStore};

/// The reason of a suspension: the chain has nonces that no row has.
pub(super) const NONCE_AHEAD: &str = "NONCE_AHEAD";
/// The most hashes of one question for receipts.
const HASHES_MAX: usize = 100;

/// The last answers of the chain, and the questions that are wanted.
#[derive(Default)]
pub(super) struct Following {
    /// The next nonce is at least this.
    pub floor: u64,
    /// The counts are to be asked for.
    pub wants_counts: bool,
    /// Nothing is asked for the counts before this time.
    pub pause: Option<Instant>,
    counted: Option<Instant>,
    /// A quorum has told its counts to this owner.
    is_compared: bool,
    count_failures: u32,
    pub is_counting: bool,
    /// The market, as it was answered last.
    pub market: Option<GasMarket>,
    market_at: Option<Instant>,
    wants_market: bool,
    is_pricing: bool,
    /// The block of the mined count that was answered last.
    mined_at: Option<B256>,
    wants_mined: bool,
    is_asking_mined: bool,
    final_mined: u64,
    wants_final: bool,
    is_asking_final: bool,
    /// A price was refused. The market is not known before a look that is later.
    pub is_refused: bool,
    /// Rows that an endpoint has acknowledged: the next look asks for their receipts.
    pub entered: BTreeSet<TxId>,
    receipts: VecDeque<TxId>,
    receipts_under_way: usize,
    /// Rows, and the hash that a person named, if one did.
    seeks: VecDeque<(TxId, Option<B256>)>,
}

/// The answers to one question for receipts.
pub(super) struct ReceiptAnswers {
    rows: Vec<(TxId, Vec<u32>)>,
    answers: Vec<ReceiptAnswer>,
    /// The final count that was known when it was asked.
    final_mined: u64,
    /// The height of the look that was asked.
    head: u64,
}

impl Following {
    /// Whether looks by time wait for the market.
    pub(super) fn waits_for_market(&self) -> bool {
        self.wants_market || self.is_pricing || self.is_refused
    }

    /// Behind a new look: the market is asked for again if it had a price that was refused.
    pub(super) fn forget_refused_market(&mut self) {
        if std::mem::take(&mut self.is_refused) {
            (self.market_at, self.wants_market) = (None, true);
        }
    }
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    /// Whether nonces may be given now: the chain was asked, and it is not ahead.
    pub(super) fn may_number(&mut self, now: Instant) -> bool {
        if self.book.is_suspended() {
            let refusal = self.suspended_refusal();
            self.refuse_creates(&refusal);
            return false;
        }
        let options = &self.tools.options;
        let is_fresh = |at: Instant| {
            !options.is_chain_queried || now.duration_since(at) < options.nonce_state_timeout
        };
        let is_known = self.following.counted.is_some_and(is_fresh);
        self.following.wants_counts |= !is_known;
        is_known
    }

    /// Whether a request without a nonce may be paid in a later copy of the rows: until the chain
    /// was asked, and while a suspension says so. Nothing ends it meanwhile.
    pub(super) fn may_lack_rows(&mut self) -> bool {
        let is_unknown = !self.following.is_compared;
        self.following.wants_counts |= is_unknown;
        is_unknown || self.book.suspensions.iter().any(Suspension::may_lack_rows)
    }

    /// Whether today's market is known, or cannot be. If not, it is asked for.
    pub(super) fn has_market(&mut self, now: Instant) -> bool {
        let (poll, waits) = (self.tools.options.poll, self.following.is_refused);
        let is_young = |at: Instant| now.duration_since(at) < poll;
        let is_fresh = !waits && self.following.market_at.is_some_and(is_young);
        let is_away = self.look.head().is_none();
        if is_away {
            self.following.market = None;
        }
        self.following.wants_market |= !is_fresh && !is_away && !waits;
        is_fresh || is_away
    }

    /// Asks for the market with the next questions.
    pub(super) fn want_market(&mut self) {
        self.following.wants_market = true;
    }

    /// Begins all questions that are wanted.
    pub(super) fn begin_questions(&mut self, now: Instant) {
        let signer = self.lease.signer;
        if self.following.wants_market && !self.following.is_pricing {
            (self.following.wants_market, self.following.is_pricing) = (false, true);
            let tools = self.tools.clone();
            self.asks.push(Box::pin(async move { Heard::Market(tools.market().await) }));
        }
        let may_count = !self.following.is_counting && self.following.pause.is_none();
        if self.following.wants_counts && may_count {
            (self.following.wants_counts, self.following.is_counting) = (false, true);
            let tools = self.tools.clone();
            self.asks
                .push(Box::pin(async move { Heard::Counts(now, tools.pool.counts(signer).await) }));
        }
        if self.following.wants_mined && !self.following.is_asking_mined {
            (self.following.wants_mined, self.following.is_asking_mined) = (false, true);
            let (tools, look) = (self.tools.clone(), self.look.clone());
            self.asks.push(Box::pin(async move {
                let counts = tools.pool.mined(&look, &[signer]).await;
                let at = look.head().map(|head| head.at.hash);
                Heard::Mined(at, counts.into_iter().next().flatten())
            }));
        }
        if self.following.wants_final && !self.following.is_asking_final {
            (self.following.wants_final, self.following.is_asking_final) = (false, true);
            let (tools, look) = (self.tools.clone(), self.look.clone());
            self.asks.push(Box::pin(async move {
                Heard::FinalMined(tools.pool.final_mined(&look, signer).await)
            }));
        }
        self.begin_receipts();
        self.begin_seeks();
    }

    pub(super) fn heard_market(&mut self, market: Option<GasMarket>) {
        self.following.is_pricing = false;
        self.following.market = market;
        self.following.market_at = Some(Instant::now());
    }

    /// N1 and N7: the chain's counts against the cursor, and the pools' counts against our sends.
    pub(super) fn heard_counts(&mut self, asked: Instant, counts: Vec<Counts>) {
        let now = Instant::now();
        self.following.is_counting = false;
        if counts.is_empty() {
            self.following.pause = Some(now + back_off(self.following.count_failures));
            self.following.count_failures += 1;
            self.following.wants_counts |=
                self.following.counted.is_none() || self.filling.is_asked();
            self.refuse_creates(&TxRefusal::Away("no endpoint tells the nonce".to_owned()));
            return;
        }
        // The book in memory may be behind the store's, by an adoption for example: the chain would
        // seem to be ahead.
        if self.writing.must_open || self.writing.is_opening {
            self.following.pause = Some(now + back_off(self.following.count_failures));
            self.following.count_failures += 1;
            self.following.wants_counts = true;
            return;
        }
        self.following.counted = Some(now);
        self.compare_cursor(&counts);
        // One endpoint that lags does not show that the rows are whole.
        let is_quorum = counts.len() >= self.tools.options.quorum.max(1);
        self.following.is_compared |= is_quorum && self.following.counted.is_some();
        self.compare_jumped(&counts, now);
        let pause = self.tools.options.resubmit_interval;
        // An endpoint that lags behind lacks nothing: it does not know of the blocks.
        let mined = self.book.mined;
        for count in counts.iter().filter(|count| count.latest >= mined) {
            for id in self.book.missing(count.pending, asked, pause) {
                self.book.change(id, |row| row.missed = Some(now));
                self.book.tell_once(id, TxFact::Missing);
            }
        }
    }

    /// A count that is ahead of the cursor suspends the signer, or raises the next nonce. Behind
    /// the deadline another process may own the signer, and the count may be of its sends.
    fn compare_cursor(&mut self, counts: &[Counts]) {
        if Instant::now() >= *self.deadline.borrow() {
            let following = &mut self.following;
            following.counted = None;
            following.pause = Some(Instant::now() + back_off(following.count_failures));
            following.count_failures += 1;
            return;
        }
        self.following.count_failures = 0;
        let options = &self.tools.options;
        let mut nonces: Vec<u64> = counts
            .iter()
            .map(|count| if options.counts_pending { count.pending } else { count.latest })
            .collect();
        nonces.sort_unstable_by(|a, b| b.cmp(a));
        let (chain, cursor) = (nonces[0], self.book.cursor.max(self.following.floor));
        if chain <= cursor {
            return;
        }
        let agreed = nonces.get(options.quorum.saturating_sub(1)).copied().unwrap_or(0);
        let follows = options.external_use == ExternalUse::Follow;
        if follows && chain - self.book.cursor <= options.jump_max {
            self.following.floor = self.following.floor.max(agreed);
            return;
        }
        self.want_suspension(NONCE_AHEAD, format!("chain {chain}, cursor {cursor}"));
    }

    /// Compares all rows with a new look at the chain.
    pub(super) fn looked(&mut self) {
        let Some(head) = self.look.head().filter(|_| self.writing.is_open) else { return };
        for id in self.book.mined_rows() {
            self.follow(id);
        }
        for id in self.book.watched() {
            self.watch(id, head.at.number);
        }
        for id in std::mem::take(&mut self.following.entered) {
            self.want_receipts(id);
        }
        self.want_lacking();
        let is_counted = self.following.mined_at == Some(head.at.hash);
        self.following.wants_mined |= self.book.is_flying() && !is_counted;
        let lacking = self.book.unreceipted().len();
        self.tools.open_rows.lack_receipts(self.lease.signer, lacking);
    }

    /// Tells a mined row its confirmations, or asks again for a receipt that has left the view.
    pub(super) fn follow(&mut self, id: TxId) {
        let options = &self.tools.options;
        let Some(row) = self.book.row(id).filter(|row| row.place() == Place::Mined) else { return };
        let Some(receipt) = row.tx.receipt else { return };
        if row.is_writing || !row.facts.is_empty() {
            return;
        }
        let (number, hash) = (receipt.block_number, receipt.block_hash);
        if !self.look.has(number, hash) {
            self.want_receipts(id);
            return;
        }
        // Told all: the lists of each endpoint are compared once more only if this one has ended.
        let told = &row.tx.told;
        let is_told = told.len() > options.required
            && told.last().is_some_and(|last| self.look.has(last.number, last.hash));
        let confirmed = match is_told {
            true => None,
            false => self.look.confirmed(told, (number, hash), options.required),
        };
        if let Some(confirmed) = confirmed {
            self.book.tell(id, TxFact::Confirmed(confirmed), None);
        } else if self.look.is_final(number, hash, options.finality, options.required) {
            self.book.tell(id, TxFact::Final, None);
        }
    }

    /// Looks whether the chain still has a terminal row. The store keeps in mind that it is looked
    /// at, so that a later owner goes on.
    fn watch(&mut self, id: TxId, head: u64) {
        self.rest(id);
        let Some(row) = self.book.row(id).filter(|row| !row.tx.is_final) else { return };
        let near = |number: u64| head <= number.saturating_add(self.tools.options.watch_blocks);
        let receipt = row.shown().filter(|receipt| near(receipt.block_number));
        let Some((number, hash)) = receipt.map(|it| (it.block_number, it.block_hash)) else {
            self.book.tell_once(id, TxFact::Past);
            return;
        };
        if !self.look.has(number, hash) {
            self.want_receipts(id);
        } else if self.look.is_final(number, hash, Finality::Finalized, 0) {
            self.book.tell_once(id, TxFact::Past);
        }
    }

    /// The mined count at a head, asked once a head. Receipts are asked for below it only.
    pub(super) fn heard_mined(&mut self, at: Option<B256>, count: Option<u64>) {
        self.following.is_asking_mined = false;
        let Some(count) = count else { return };
        self.following.mined_at = at;
        self.book.mined = count;
        self.filling.see(count, Instant::now());
        self.want_lacking();
        // Sent and not mined: each pool is asked whether it has them.
        self.following.wants_counts |= self.book.has_unmined();
    }

    /// Asks for the receipts that rows below the mined count lack.
    fn want_lacking(&mut self) {
        let now = Instant::now();
        let is_due = |row: &Row| row.ask_at <= Some(now) && !row.is_busy();
        let due = |id: &TxId| self.book.row(*id).is_some_and(is_due);
        let mut ids: Vec<TxId> = self.book.unreceipted().into_iter().filter(due).collect();
        // Those that were not found come behind the others.
        ids.sort_by_key(|id| self.book.row(*id).map(|row| row.misses));
        for id in ids {
            self.want_receipts(id);
        }
        // A count that was too high may fall again.
        self.following.wants_final |= !self.book.unaccounted().is_empty();
    }

    pub(super) fn heard_final_mined(&mut self, count: Option<u64>) {
        self.following.is_asking_final = false;
        let Some(count) = count else { return };
        self.following.final_mined = count;
        for (id, nonce) in self.book.unaccounted() {
            if count <= nonce {
                self.book.tell_once(id, TxFact::Unspent);
            }
        }
    }

    /// Asks for the receipts of all attempts of a row.
    pub(super) fn want_receipts(&mut self, id: TxId) {
        let is_new =
            self.book.row(id).is_some_and(|row| !row.is_asked && !row.tx.attempts.is_empty());
        if is_new {
            self.book.change(id, |row| row.is_asked = true);
            self.following.receipts.push_back(id);
        }
    }

    fn begin_receipts(&mut self) {
        if self.following.receipts.is_empty() || self.look.head().is_none() {
            return;
        }
        let workers = self.tools.options.receipt_workers.max(1);
        while self.following.receipts_under_way < workers && !self.following.receipts.is_empty() {
            let mut rows: Vec<(TxId, Vec<u32>)> = Vec::new();
            let mut hashes: Vec<B256> = Vec::new();
            while let Some(id) = self.following.receipts.front().copied() {
                let attempts = self.book.row(id).map_or(&[][..], |row| &row.tx.attempts);
                if !hashes.is_empty() && hashes.len() + attempts.len() > HASHES_MAX {
                    break;
                }
                self.following.receipts.pop_front();
                hashes.extend(attempts.iter().map(|attempt| attempt.hash));
                rows.push((id, attempts.iter().map(|attempt| attempt.number).collect()));
            }
            self.following.receipts_under_way += 1;
            let final_mined = self.following.final_mined;
            let (tools, look) = (self.tools.clone(), self.look.clone());
            let head = look.head().map_or(0, |head| head.at.number);
            self.asks.push(Box::pin(async move {
                let answers = tools.pool.receipts(&look, &hashes).await;
                Heard::Receipts(ReceiptAnswers { rows, answers, final_mined, head })
            }));
        }
    }

    pub(super) fn heard_receipts(&mut self, answers: ReceiptAnswers) {
        self.following.receipts_under_way -= 1;
        let ReceiptAnswers { rows, answers, final_mined, head } = answers;
        let mut answers = answers.into_iter();
        for (id, attempts) in rows {
            let of_row: Vec<(u32, ReceiptAnswer)> =
                attempts.iter().copied().zip(answers.by_ref().take(attempts.len())).collect();
            self.book.change(id, |row| row.is_asked = false);
            self.take_receipts(id, of_row, (final_mined, head));
        }
    }

    fn take_receipts(
        &mut self,
        id: TxId,
        answers: Vec<(u32, ReceiptAnswer)>,
        (final_mined, head): (u64, u64),
    ) {
        let signer = self.lease.signer;
        let is_clear = answers.iter().all(|(_, answer)| *answer == ReceiptAnswer::NotFound);
        let believed = answers.into_iter().find_map(|(attempt, answer)| match answer {
            ReceiptAnswer::Believed(read) if read.from == signer => Some((attempt, read)),
            _ => None,
        });
        let result = match (&believed, is_clear) {
            (Some(_), _) => "found",
            (None, true) => "not_found",
            (None, false) => "unclear",
        };
        metrics::counter!("ubscore_receipt_check_total", "result" => result).increment(1);
        let Some(row) = self.book.row(id) else { return };
        match believed {
            Some((attempt, read)) => {
                let Some(receipt) = receipt(&row.tx, attempt, &read) else { return };
                let is_news = row.shown() != Some(receipt);
                self.book.change(id, |row| {
                    (row.misses, row.ask_at) = (0, None);
                    row.behind = row.tx.state.is_terminal().then_some(receipt);
                });
                if is_news {
                    crash::point("txm_after_receipt");
                    self.book.tell_once(id, TxFact::Mined(receipt));
                }
            }
            None if is_clear && row.tx.receipt.is_some() => self.unfound(id, head),
            None => {
                let nonce = row.tx.nonce.unwrap_or(u64::MAX);
                if nonce < self.book.mined {
                    self.miss(id);
                }
                if is_clear && nonce < final_mined {
                    self.book.tell_once(id, TxFact::Unaccounted);
                    self.seek(id, None);
                } else if is_clear && nonce < self.book.mined {
                    self.following.wants_final = true;
                }
            }
        }
    }

    /// A receipt that was believed is not found any more. `asked`: the height of the look of then.
    fn unfound(&mut self, id: TxId, asked: u64) {
        let now = Instant::now();
        let Some(row) = self.book.row(id) else { return };
        let Some(receipt) = row.shown() else { return };
        // A look that ends below the block does not show that it has gone.
        let head = self.look.head().map_or(0, |head| head.at.number);
        let is_below = head.min(asked) < receipt.block_number;
        if is_below || self.look.has(receipt.block_number, receipt.block_hash) {
            return;
        }
        // A terminal row keeps its receipt: its bytes are sent again each interval.
        let pause = self.tools.options.resubmit_interval;
        let is_again = row.tx.state.is_terminal() && row.missed.is_some_and(|at| now < at + pause);
        if !is_again {
            self.book.change(id, |row| row.missed = Some(now));
            self.book.tell_once(id, TxFact::Unmined);
        }
    }

    fn miss(&mut self, id: TxId) {
        self.book.change(id, |row| {
            row.ask_at = Some(Instant::now() + back_off(row.misses));
            row.misses += 1;
        });
    }

    /// Looks for the transaction that has a row's nonce on chain: by its signer and nonce, and by
    /// the hash that a person named.
    pub(super) fn seek(&mut self, id: TxId, named: Option<B256>) {
        if self.book.row(id).is_some_and(|row| !row.is_sought || named.is_some()) {
            self.book.change(id, |row| (row.is_sought, row.named) = (true, named.or(row.named)));
            let named = self.book.row(id).and_then(|row| row.named);
            self.following.seeks.push_back((id, named));
        }
    }

    fn begin_seeks(&mut self) {
        if self.following.seeks.is_empty() || self.look.head().is_none() {
            return;
        }
        while let Some((id, named)) = self.following.seeks.pop_front() {
            let Some(nonce) = self.book.row(id).and_then(|row| row.tx.nonce) else { continue };
            let (tools, look, signer) = (self.tools.clone(), self.look.clone(), self.lease.signer);
            self.asks.push(Box::pin(async move {
                let mut found = tools.pool.by_sender_and_nonce(&look, signer, nonce).await;
                if let Some(hash) = named.filter(|_| found.is_empty()) {
                    found = tools.pool.by_hash(&look, hash).await;
                    found.retain(|read| read.from == signer && read.nonce == nonce);
                }
                Heard::Sought(id, look, found)
            }));
        }
    }

    /// Ours: its receipt tells. Another one, final on a quorum: the nonce is taken.
    pub(super) fn heard_sought(&mut self, id: TxId, look: &Arc<Look>, found: &[TransactionRead]) {
        self.book.change(id, |row| row.is_sought = false);
        let Some(row) = self.book.row(id) else { return };
        let is_ours = |read: &TransactionRead| {
            row.tx.attempts.iter().any(|attempt| attempt.hash == read.hash)
        };
        if found.iter().any(is_ours) {
            self.want_receipts(id);
            return;
        }
        let options = &self.tools.options;
        let finals: Vec<B256> = found
            .iter()
            .filter(|read| {
                read.block.is_some_and(|(number, hash)| {
                    look.is_final(number, hash, options.finality, options.required)
                })
            })
            .map(|read| read.hash)
            .collect();
        let taker = finals.iter().find(|hash| {
            let agree = finals.iter().filter(|other| other == hash).count();
            agree >= options.quorum.max(1) && found.iter().all(|read| read.hash == **hash)
        });
        // The end of a row needs both: the nonce is mined for good, and by this one.
        let is_spent = row.tx.nonce.is_some_and(|nonce| nonce < self.following.final_mined);
        self.following.wants_final |= taker.is_some() && !is_spent;
        if let Some(hash) = taker.filter(|_| is_spent).copied() {
            let tools = self.tools.clone();
            self.asks.push(Box::pin(async move {
                let raw = tools.pool.raw(hash).await;
                Heard::Taken(id, hash, raw)
            }));
        }
    }

    /// The nonce has a transaction that is none of the row's attempts. If it pays the same, an
    /// older copy of the rows lacks it: it is one of them. One of another form never was ours.
    pub(super) fn heard_taken(&mut self, id: TxId, hash: B256, raw: Result<Bytes, usize>) {
        let Some(row) = self.book.row(id) else { return };
        let raw = match raw {
            Ok(raw) => raw,
            Err(others) if others >= self.tools.options.quorum.max(1) => {
                self.book.tell_once(id, TxFact::Taken(hash));
                return;
            }
            // It is sought again.
            Err(_) => return,
        };
        let Ok(found) = codec::read(&raw) else {
            self.book.tell_once(id, TxFact::Taken(hash));
            return;
        };
        let new = &row.tx.new;
        let is_same = new.payload.call() == (found.to, found.value, found.data);
        let kind = if new.is_fill() { AttemptKind::Fill } else { AttemptKind::Bump };
        let (price, gas) = (found.price, found.gas);
        let fact = match is_same && (new.signer, row.tx.nonce) == (found.signer, Some(found.nonce))
        {
            true => TxFact::Forgotten(Signed { kind, raw, hash, price, gas }),
            false => TxFact::Taken(hash),
        };
        self.book.tell_once(id, fact);
    }
}

/// The receipt of an attempt, with the proof in it; `None`: the row has no such attempt.
fn receipt(tx: &Tx, attempt: u32, read: &ReceiptRead) -> Option<TxReceipt> {
    let kind = tx.attempts.iter().find(|stored| stored.number == attempt)?.kind;
    let logs = read.logs.iter().map(|log| ProofLog {
        contract: log.contract,
        topics: &log.topics,
        data: &log.data,
    });
    let proof = proof(kind, tx.new.signer, &tx.new.payload, read.is_success, logs);
    Some(TxReceipt {
        attempt,
        hash: read.hash,
        block_number: read.block_number,
        block_hash: read.block_hash,
        proof,
        gas_used: read.gas_used,
        gas_price: read.gas_price,
    })
}
