//! Requests of the handle: rounds, decisions, reads. A round of unknown end is sent again until the
//! store tells its end; it has one name, so it is accepted once.

use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Participant, ReqId};
use tokio::sync::oneshot;
use tracing::warn;

use super::{Done, Running, Work, Worker, after, ns};
use crate::crash;
use crate::postgres::Superseded;
use crate::postgres::transactions::{
    Accepted, Found, RoundAccept, TransactionError, TransactionStore,
};
use crate::transaction::{
    Decider, TransactionName, TransactionRound, TransactionRow, TransactionState,
    TransactionVerdict,
};
use crate::transactions::branches::Branches;
use crate::transactions::entry::{Waiter, Want, Wish, answer, is_unproven, may_commit, no_proof};
use crate::transactions::handle::{
    TransactionAnswer, TransactionAsk, TransactionMessage, TransactionRefusal,
};
use crate::transactions::rounds;
use crate::transactions::step::{BY_AGE, Known};

/// A round of unknown end is given up after this, milliseconds: its name is written as cancelled,
/// unless it stands. Its caller has been answered long before.
const GIVEN_UP_MS: u64 = 30_000;

/// The caller of a request.
#[derive(Debug)]
pub(super) struct Client {
    /// Until when it waits for the awaited thing, monotonic ns.
    pub(super) until_ns: u64,
    /// Until when it waits for the store, monotonic ns.
    pub(super) late_ns: u64,
    pub(super) reply: oneshot::Sender<TransactionAnswer>,
}

impl Client {
    /// A client that has hung up is no error. None is told a decision before its seal.
    pub(super) fn answer(self, answer: TransactionAnswer) {
        let row = match &answer {
            Ok(reply) => Some(&reply.row),
            Err(refusal) => refusal.row.as_deref(),
        };
        let is_early = row.is_some_and(is_unproven);
        drop(self.reply.send(if is_early { no_proof() } else { answer }));
    }
}

/// A row that is to be written under a name.
#[derive(Debug)]
pub(super) struct Pending {
    accept: RoundAccept,
    /// The author and reason of an end of a name that nothing stands under.
    abort: Option<(String, Option<String>)>,
    client: Option<Client>,
    since_ns: u64,
    /// The row has this round: nothing new is written.
    is_repeat: bool,
    /// An earlier try may have been carried out.
    maybe: bool,
    /// A flight with others was refused: it has one of its own.
    alone: bool,
}

impl Pending {
    pub(super) fn accept(&self) -> &RoundAccept {
        &self.accept
    }

    pub(super) fn name(&self) -> &TransactionName {
        &self.accept.round.name
    }

    /// Whether an earlier try of it may have been carried out.
    pub(super) fn is_sent(&self) -> bool {
        self.maybe
    }

    /// Whether it needs a flight of its own.
    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether it ends a name instead of taking a round.
    pub(super) fn is_abort(&self) -> bool {
        self.abort.is_some()
    }

    pub(super) fn alone(mut self) -> Pending {
        self.alone = true;
        self
    }
}

/// The reason for a search.
#[derive(Debug)]
enum Purpose {
    Get,
    Commit {
        rounds: Option<u8>,
    },
    Abort {
        by: String,
        reason: Option<String>,
    },
    /// Nothing new is taken, for want of room or while halted, but this may be a repeat.
    Round(Box<TransactionRound>),
}

/// A row that is searched by its name.
#[derive(Debug)]
pub(super) struct Sought {
    name: TransactionName,
    purpose: Purpose,
    client: Client,
}

impl Sought {
    pub(super) fn name(&self) -> &TransactionName {
        &self.name
    }
}

/// The thing that has no room for a round.
#[derive(Clone, Copy, Debug)]
enum Lack {
    /// So many transactions are unfinished as may be.
    Active,
    /// Something of UBSCore, or of the workers of transfers.
    Of(Shortage),
}

impl Lack {
    /// The answer. Nothing was written.
    fn answer(self) -> TransactionAnswer {
        let detail = match self {
            Lack::Active => {
                "Too many transactions are unfinished (transactions.active_max). Retry later."
            }
            Lack::Of(shortage) => shortage.message(),
        };
        Err(TransactionRefusal::because(Code::Overloaded, detail))
    }
}

fn halted() -> TransactionAnswer {
    Err(Code::ServiceHalted.into())
}

/// No answer of the store. `unknown`: it may have been done.
fn silent(unknown: bool) -> TransactionAnswer {
    let detail = "PostgreSQL does not answer.";
    Err(TransactionRefusal { unknown, ..TransactionRefusal::because(Code::SystemError, detail) })
}

/// The row stands, and is none that the service writes. It may have everything that was asked for.
fn unreadable(error: &TransactionError) -> TransactionAnswer {
    let refusal = TransactionRefusal::because(Code::SystemError, error.to_string());
    Err(TransactionRefusal { unknown: true, ..refusal })
}

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    pub(super) fn on_message(&mut self, message: TransactionMessage) {
        if !self.loaded {
            self.early.push(message);
            return;
        }
        let now_ns = self.now_ns();
        let until_ns = after(now_ns, message.wait);
        let late_ns = after(until_ns, self.parts.options.accept_wait);
        let client = Client { until_ns, late_ns, reply: message.reply };
        match message.ask {
            TransactionAsk::Round(round) => self.on_round(round, client),
            TransactionAsk::Commit { name, rounds } => {
                self.seek(name, Purpose::Commit { rounds }, client);
            }
            TransactionAsk::Abort { name, by, reason } => {
                self.seek(name, Purpose::Abort { by, reason }, client);
            }
            TransactionAsk::Get(name) => self.seek(name, Purpose::Get, client),
            // An operator is shown the row as it stands.
            TransactionAsk::Retry(id) => drop(client.reply.send(self.retry(id))),
            TransactionAsk::Resolve(id) => self.resolve(id, client),
            TransactionAsk::Abandon(id, abandon) => self.abandon(id, abandon, client),
        }
    }

    fn seek(&mut self, name: TransactionName, purpose: Purpose, client: Client) {
        self.work.push_back(Work::Find(Box::new(Sought { name, purpose, client })));
    }

    fn on_round(&mut self, round: Box<TransactionRound>, client: Client) {
        if self.lack(&round).is_some() || self.parts.gate.is_closed() {
            let name = round.name.clone();
            self.seek(name, Purpose::Round(round), client);
            return;
        }
        self.accept(*round, client, false);
    }

    /// The thing that has no room for this round.
    ///
    /// UBSCore keeps an outcome place for the end of each of `active_max` transactions, and none of
    /// them goes to new work. So at most so many are under way. A round of Spot needs places for
    /// new work besides: for its RESERVE, and for the end that the RESERVE keeps.
    fn lack(&self, round: &TransactionRound) -> Option<Lack> {
        match self.names.get(&round.name).and_then(|id| self.entries.get(id)) {
            None if self.active() >= self.parts.options.active_max => return Some(Lack::Active),
            // A repeat.
            Some(known) if known.row.rounds >= round.round => return None,
            _ => {}
        }
        if has_spot(round) { (self.parts.shortage)().map(Lack::Of) } else { None }
    }

    /// Unfinished transactions, with those that are being written.
    fn active(&self) -> usize {
        let is_new = |work: &&Work| match work {
            Work::Accept(pending) => !self.names.contains_key(pending.name()),
            _ => false,
        };
        let waiting = self.work.iter().filter(is_new).count();
        self.entries.len() + waiting + self.flying
    }

    /// Sends a round to the store. Its number is published before. `is_repeat`: the row has it.
    fn accept(&mut self, mut round: TransactionRound, client: Client, is_repeat: bool) {
        let known = self.names.get(&round.name).and_then(|id| self.entries.get(id));
        // A repeat was checked when it came first.
        let earlier = known.map(|entry| &entry.row).filter(|row| row.rounds < round.round);
        let is_repeat = is_repeat || known.is_some() && earlier.is_none();
        rounds::fix_special(earlier, &mut round, &*self.parts.special);
        if !is_repeat && let Err(code) = rounds::check(earlier, &round) {
            client.answer(Err(code.into()));
            return;
        }
        self.send(round, None, client, is_repeat);
    }

    fn send(
        &mut self,
        round: TransactionRound,
        abort: Option<(String, Option<String>)>,
        client: Client,
        is_repeat: bool,
    ) {
        let order_number = self.parts.numbers.take();
        self.numbers_in_use.insert(order_number);
        let (id, at, since_ns) = (self.new_id(), self.now(), self.now_ns());
        let accept = RoundAccept { round, id, order_number, at };
        let client = Some(client);
        let (maybe, alone) = (false, false);
        let pending = Pending { accept, abort, client, since_ns, is_repeat, maybe, alone };
        self.work.push_back(Work::Accept(Box::new(pending)));
    }

    fn new_id(&mut self) -> ReqId {
        ReqId::generate(self.parts.clock.now_ns(), self.parts.entropy.u128())
    }

    /// Takes rounds that wait, at most so many. `alone`: those that need a flight of their own.
    /// While the service is halted, new ones are refused.
    pub(super) fn take_accepts(
        &mut self,
        most: usize,
        alone: bool,
        is_halted: bool,
    ) -> Vec<Pending> {
        if !self.work.iter().any(|work| matches!(work, Work::Accept(_))) {
            return Vec::new();
        }
        let now_ns = self.now_ns();
        let (mut taken, mut kept) = (Vec::new(), Vec::with_capacity(self.work.len()));
        for work in std::mem::take(&mut self.work) {
            match work {
                Work::Accept(mut pending)
                    if taken.len() < most && pending.alone == alone && !pending.is_abort() =>
                {
                    if pending.maybe && now_ns - pending.since_ns > ns(GIVEN_UP_MS) {
                        let tx_id = pending.name().tx_id.as_str();
                        warn!(tx_id, "the end of a round is unknown: it is given up");
                        pending.abort = Some((BY_AGE.to_owned(), None));
                        kept.push(Work::Accept(pending));
                    } else if is_halted && !pending.maybe && !pending.is_repeat {
                        self.drop_pending(*pending, halted());
                    } else {
                        taken.push(*pending);
                    }
                }
                work => kept.push(work),
            }
        }
        self.work.extend(kept);
        taken
    }

    /// Begins to end a name that nothing stands under. `None`: it is refused, because the service
    /// is halted.
    pub(super) fn begin_cancel(
        &mut self,
        mut store: S,
        mut pending: Box<Pending>,
    ) -> Option<Running<S>> {
        let pass = self.parts.gate.pass();
        if pass.is_none() && !pending.maybe && !pending.is_repeat {
            self.store = Some(store);
            self.drop_pending(*pending, halted());
            return None;
        }
        Some(Box::pin(async move {
            let _moving = pass;
            crash::point("transaction_before_accept");
            let (by, reason) = pending.abort.take().unwrap_or_default();
            let cancelled = store.cancel_unknown(&pending.accept, &by, reason.as_deref()).await;
            pending.abort = Some((by, reason));
            (store, Done::Cancelled(pending, cancelled))
        }))
    }

    /// The watermark may pass this number: nothing was written under it, or both stores have ended.
    pub(super) fn release_number(&mut self, order_number: u64) {
        self.numbers_in_use.remove(&order_number);
        self.publish();
    }

    fn drop_pending(&mut self, pending: Pending, answer: TransactionAnswer) {
        self.release_number(pending.accept.order_number);
        if let Some(client) = pending.client {
            client.answer(answer);
        }
    }

    /// The answer to one round of a flight.
    pub(super) fn on_accepted(
        &mut self,
        pending: Pending,
        result: Result<Accepted, TransactionError>,
    ) {
        let (ours, number) = (pending.accept.id, pending.accept.order_number);
        match result {
            Ok(Accepted::Taken { row, replayed }) => {
                crash::point("transaction_after_accept");
                if row.order_number != number {
                    self.release_number(number);
                }
                let replayed = replayed && !(pending.maybe && row.id == ours);
                let want = Want::Round(pending.accept.round.round);
                self.attach(*row, pending.client, want, replayed, None);
            }
            Ok(Accepted::Refused { code, detail, row }) => {
                if let Some(row) = &row
                    && !row.state.is_terminal()
                {
                    self.adopt((**row).clone());
                }
                let detail = Some(detail);
                let refusal = TransactionRefusal { code, detail, row, unknown: false };
                self.drop_pending(pending, Err(refusal));
            }
            Err(error @ TransactionError::Unreadable(_)) => {
                self.drop_pending(pending, unreadable(&error));
            }
            Err(TransactionError::Refused(_)) => self.on_refused(pending),
            Err(error) => {
                self.note_outage(&error);
                self.send_again(pending);
            }
        }
    }

    /// PostgreSQL has refused a round alone, or has nothing of it.
    pub(super) fn on_refused(&mut self, pending: Pending) {
        if pending.maybe {
            self.send_again(pending);
            return;
        }
        self.outage = (0, 0);
        self.drop_pending(pending, silent(false));
    }

    /// The end of a round is unknown: it is sent again.
    pub(super) fn send_again(&mut self, mut pending: Pending) {
        pending.maybe = true;
        // Its row may have a round that the memory lacks: nothing is decided before a read.
        if let Some(id) = self.names.get(pending.name()).copied() {
            self.make_stale(id);
        }
        self.work.push_front(Work::Accept(Box::new(pending)));
    }

    /// # Errors
    /// [`Superseded`].
    pub(super) fn on_cancelled(
        &mut self,
        mut pending: Box<Pending>,
        result: Result<TransactionRow, TransactionError>,
    ) -> Result<(), Superseded> {
        match self.result(result)? {
            Ok(row) => {
                if row.order_number != pending.accept.order_number || row.state.is_terminal() {
                    self.release_number(pending.accept.order_number);
                }
                let abort = pending.abort.unwrap_or_default();
                match pending.client {
                    Some(client) => self.abort(row, abort, client),
                    None => self.attach(row, None, Want::Rest, false, None),
                }
            }
            Err(TransactionError::Refused(_)) if !pending.maybe => {
                self.outage = (0, 0);
                self.drop_pending(*pending, silent(false));
            }
            Err(error @ TransactionError::Unreadable(_)) => {
                self.outage = (0, 0);
                self.drop_pending(*pending, unreadable(&error));
            }
            Err(_) => {
                pending.maybe = true;
                self.work.push_front(Work::Accept(pending));
            }
        }
        Ok(())
    }

    /// A search of a caller has ended.
    pub(super) fn on_found(&mut self, sought: Sought, found: Found) {
        let Sought { name, purpose, client } = sought;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                client.answer(unreadable(&error));
                return;
            }
        };
        match (found, purpose) {
            (Some(row), Purpose::Round(round)) if row.rounds >= round.round => {
                self.accept(*round, client, true);
            }
            (_, Purpose::Round(_)) if self.parts.gate.is_closed() => client.answer(halted()),
            // Judged again: other rounds may have come while this one was looked for.
            (_, Purpose::Round(round)) => match self.lack(&round) {
                Some(lack) => client.answer(lack.answer()),
                None => self.accept(*round, client, false),
            },
            (None, Purpose::Get | Purpose::Commit { .. }) => {
                client.answer(Err(Code::TransactionNotFound.into()));
            }
            (None, Purpose::Abort { by, reason }) => {
                self.send(unknown(name), Some((by, reason)), client, false);
            }
            (Some(row), Purpose::Get) => self.attach(row, Some(client), Want::Rest, false, None),
            (Some(row), Purpose::Commit { rounds }) => self.commit(row, rounds, client),
            (Some(row), Purpose::Abort { by, reason }) => self.abort(row, (by, reason), client),
        }
    }

    fn commit(&mut self, row: TransactionRow, rounds: Option<u8>, client: Client) {
        let is_decided = row.state.verdict().is_some();
        if !is_decided && let Err(refusal) = may_commit(&row, rounds) {
            client.answer(Err(refusal));
        } else if !is_decided && self.parts.gate.is_closed() {
            client.answer(halted());
        } else {
            let wish = (!is_decided).then_some(Wish::Commit { rounds });
            self.attach(row, Some(client), Want::Commit, is_decided, wish);
        }
    }

    fn abort(
        &mut self,
        row: TransactionRow,
        (by, reason): (String, Option<String>),
        client: Client,
    ) {
        match (row.state, row.state.verdict()) {
            // It is refused behind the seal.
            (_, Some(TransactionVerdict::Commit)) => {
                self.attach(row, Some(client), Want::Abort, true, None)
            }
            (TransactionState::Deciding, _) => {
                let detail = "The last participant has been asked, and its answer decides.";
                let refusal = TransactionRefusal::because(Code::TransactionDecided, detail);
                let row = Some(Box::new(row));
                client.answer(Err(TransactionRefusal { row, ..refusal }));
            }
            (_, Some(TransactionVerdict::Abort)) => {
                self.attach(row, Some(client), Want::Abort, true, None)
            }
            (_, None) if self.parts.gate.is_closed() => client.answer(halted()),
            (_, None) => {
                let wish = Some(Wish::Abort { by, reason });
                self.attach(row, Some(client), Want::Abort, false, wish);
            }
        }
    }

    /// Takes a row, and has its caller wait.
    fn attach(
        &mut self,
        row: TransactionRow,
        client: Option<Client>,
        want: Want,
        replayed: bool,
        wish: Option<Wish>,
    ) {
        let waiter = client.map(|Client { until_ns, late_ns, reply }| Waiter {
            want,
            until_ns,
            late_ns,
            replayed,
            reply,
        });
        let (id, is_final) = (row.id, row.state.is_terminal());
        if is_final && let Some(waiter) = waiter {
            let answered = answer(&waiter, &row, Known::default(), (None, true, true));
            let answered = answered.expect("a final row has an answer");
            drop(waiter.reply.send(answered));
            self.adopt(row);
            return;
        }
        self.adopt(row);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        // The first decision that is wanted stays.
        entry.wish = entry.wish.take().or(wish);
        if let Some(waiter) = waiter {
            let (until_ns, late_ns) = (waiter.until_ns, waiter.late_ns);
            entry.waiters.push(waiter);
            self.wake_at(until_ns, id);
            self.wake_at(late_ns, id);
        }
        self.woken.insert(id);
    }

    /// Answers the callers that the store has kept waiting for too long.
    pub(super) fn answer_late(&mut self) {
        let now_ns = self.now_ns();
        let mut kept = std::collections::VecDeque::with_capacity(self.work.len());
        for work in std::mem::take(&mut self.work) {
            match work {
                Work::Find(sought) if sought.client.late_ns <= now_ns => {
                    sought.client.answer(silent(false));
                }
                Work::Accept(mut pending) => {
                    let is_late =
                        pending.client.as_ref().is_some_and(|client| client.late_ns <= now_ns);
                    if is_late && !pending.maybe {
                        self.drop_pending(*pending, silent(false));
                        continue;
                    }
                    if is_late && let Some(client) = pending.client.take() {
                        client.answer(silent(true));
                    }
                    kept.push_back(Work::Accept(pending));
                }
                work => kept.push_back(work),
            }
        }
        self.work = kept;
    }
}

/// Whether a round needs places of UBSCore.
fn has_spot(round: &TransactionRound) -> bool {
    round.legs.iter().any(|leg| leg.is_in(Participant::Spot))
}

/// The round of a transaction that was never sent.
fn unknown(name: TransactionName) -> TransactionRound {
    TransactionRound {
        name,
        round: 1,
        decider: Decider::Coordinator,
        ttl_ms: 0,
        legs: Vec::new(),
        services: Vec::new(),
        last: None,
        followers: Vec::new(),
        fingerprint: [0; 16],
    }
}
