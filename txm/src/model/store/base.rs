//! The tables and the clock of the model, and the leases.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256};
use chain::tx::{Tx, TxId};
use tokio::time::{Duration, Instant};

use super::{ModelPassage, StoreBug};
use crate::store::{
    Acquired, CommandWish, Lease, OtherOwner, SignerOwner, StoreError, Suspension, TxCommand,
    Wanting,
};

/// The model's first moment: ms since 1970.
const ORIGIN_MS: i64 = 1_700_000_000_000;

#[derive(Clone, Copy)]
pub(super) struct LeaseRow {
    owner: u64,
    token: u64,
    /// `None`: released.
    expires: Option<Stamp>,
}

#[derive(Default)]
pub(super) struct SignerRow {
    pub(super) first: u64,
    pub(super) cursor: u64,
    /// The nonces that a jump passed over, and no row has.
    pub(super) jumped: Vec<u64>,
    pub(super) suspensions: Vec<Suspension>,
    lease: Option<LeaseRow>,
    /// The lease before, and the time of its end.
    before: Option<(LeaseRow, Stamp)>,
}

struct NodeRow {
    name: String,
    /// `None`: it has left.
    seen: Option<Stamp>,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// Done.
    Done,
    /// Refused, for this reason.
    Refused(String),
}

pub(super) struct CommandRow {
    pub(super) signer: Address,
    pub(super) command: TxCommand,
    pub(super) end: Option<CommandEnd>,
}

/// A row, with the times that a reader sees as durations.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) tx: Tx,
    pub(super) made: u64,
    pub(super) next_resubmit: Option<Stamp>,
    pub(super) first_sent: Option<Stamp>,
    pub(super) passages: Vec<ModelPassage>,
}

/// A time of the store's clock, ms since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(i64);

impl Stamp {
    pub(super) fn after(self, time: Duration) -> Stamp {
        Stamp(self.0 + i64::try_from(time.as_millis()).expect("a short time"))
    }

    /// The time from an earlier stamp; 0 if that is later.
    pub(super) fn since(self, earlier: Stamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

/// A statement that is under way for long.
type Late = Box<dyn FnOnce(&mut Base) + Send>;

/// The database.
pub(super) struct Base {
    pub(super) origin: Instant,
    step_ms: i64,
    duration: Duration,
    skew: Duration,
    nodes: Vec<NodeRow>,
    pub(super) signers: BTreeMap<Address, SignerRow>,
    pub(super) rows: BTreeMap<TxId, Row>,
    pub(super) by_request: BTreeMap<(Address, String), TxId>,
    pub(super) by_nonce: BTreeMap<(Address, u64), TxId>,
    pub(super) by_business: BTreeMap<String, TxId>,
    pub(super) by_hash: BTreeMap<B256, (TxId, u32)>,
    pub(super) commands: BTreeMap<u64, CommandRow>,
    pub(super) admits_any_bytes: bool,
    bug: Option<StoreBug>,
    late: Vec<(Instant, Late)>,
    fenced: u64,
}

impl Base {
    pub(super) fn new(duration: Duration, skew: Duration) -> Base {
        Base {
            origin: Instant::now(),
            step_ms: 0,
            duration,
            skew,
            nodes: Vec::new(),
            signers: BTreeMap::new(),
            rows: BTreeMap::new(),
            by_request: BTreeMap::new(),
            by_nonce: BTreeMap::new(),
            by_business: BTreeMap::new(),
            by_hash: BTreeMap::new(),
            commands: BTreeMap::new(),
            admits_any_bytes: false,
            bug: None,
            late: Vec::new(),
            fenced: 0,
        }
    }

    /// The one clock.
    pub(super) fn now(&self) -> Stamp {
        let passed = i64::try_from(self.origin.elapsed().as_millis()).expect("a short time");
        Stamp(ORIGIN_MS + self.step_ms + passed)
    }

    pub(super) fn step_clock(&mut self, seconds: i64) {
        self.step_ms += seconds * 1_000;
    }

    pub(super) fn arrive_later(&mut self, due: Instant, late: Late) {
        self.late.push((due, late));
    }

    /// Carries out the statements that arrive by now, in the order of their arrival.
    pub(super) fn arrive(&mut self, now: Instant) {
        while let Some(at) = (0..self.late.len())
            .filter(|at| self.late[*at].0 <= now)
            .min_by_key(|at| (self.late[*at].0, *at))
        {
            let (_, statement) = self.late.remove(at);
            statement(self);
        }
    }

    pub(super) fn add_node(&mut self, name: &str) -> u64 {
        let seen = Some(self.now());
        self.nodes.push(NodeRow { name: name.to_owned(), seen });
        self.nodes.len() as u64
    }

    pub(super) fn add_signer(&mut self, signer: Address, cursor: u64) {
        let row = SignerRow { first: cursor, cursor, ..SignerRow::default() };
        let before = self.signers.insert(signer, row);
        assert!(before.is_none(), "{signer} is known");
    }

    pub(super) fn add_command(
        &mut self,
        signer: Address,
        tx: Option<TxId>,
        wish: CommandWish,
    ) -> u64 {
        let id = self.commands.len() as u64 + 1;
        let command = TxCommand { id, tx, wish };
        self.commands.insert(id, CommandRow { signer, command, end: None });
        id
    }

    pub(super) fn command_end(&self, id: u64) -> Option<CommandEnd> {
        self.commands.get(&id)?.end.clone()
    }

    pub(super) fn suspend(&mut self, signer: Address, reason: &str, actor: &str) {
        let suspension = Suspension { reason: reason.to_owned(), actor: actor.to_owned() };
        let row = self.signers.get_mut(&signer).expect("a known signer");
        if !row.suspensions.contains(&suspension) {
            row.suspensions.push(suspension);
        }
    }

    pub(super) fn resume(&mut self, signer: Address, reason: &str) {
        let row = self.signers.get_mut(&signer).expect("a known signer");
        row.suspensions.retain(|suspension| suspension.reason != reason);
    }

    pub(super) fn reasons(&self, signer: Address) -> Vec<String> {
        let suspensions = self.signers.get(&signer).into_iter().flat_map(|row| &row.suspensions);
        suspensions.map(|suspension| suspension.reason.clone()).collect()
    }

    pub(super) fn fenced_total(&self) -> u64 {
        self.fenced
    }

    pub(super) fn admit_any_bytes(&mut self) {
        self.admits_any_bytes = true;
    }

    pub(super) fn restore(&mut self, mut older: Base) {
        for (signer, row) in &mut older.signers {
            row.lease = self.signers.get_mut(signer).and_then(|row| row.lease.take());
        }
        *self = older;
    }

    /// A copy without the statements that are under way.
    pub(super) fn backup(&self) -> Base {
        let signer = |row: &SignerRow| SignerRow {
            jumped: row.jumped.clone(),
            suspensions: row.suspensions.clone(),
            ..*row
        };
        let command = |row: &CommandRow| CommandRow {
            command: row.command.clone(),
            end: row.end.clone(),
            ..*row
        };
        let node = |node: &NodeRow| NodeRow { name: node.name.clone(), ..*node };
        Base {
            nodes: self.nodes.iter().map(node).collect(),
            signers: self.signers.iter().map(|(key, row)| (*key, signer(row))).collect(),
            rows: self.rows.clone(),
            by_request: self.by_request.clone(),
            by_nonce: self.by_nonce.clone(),
            by_business: self.by_business.clone(),
            by_hash: self.by_hash.clone(),
            commands: self.commands.iter().map(|(key, row)| (*key, command(row))).collect(),
            late: Vec::new(),
            ..*self
        }
    }

    /// The one definition of a live lease, of renewal, fence and take-over.
    fn is_alive(&self, lease: &LeaseRow) -> bool {
        let now = self.now();
        lease.expires.is_some_and(|expires| {
            now < expires.after(self.skew) && expires <= now.after(self.duration + self.skew)
        })
    }

    fn lease(&self, signer: Address) -> Option<&LeaseRow> {
        self.signers.get(&signer)?.lease.as_ref()
    }

    fn live(&self, signer: Address) -> Option<&LeaseRow> {
        self.lease(signer).filter(|lease| self.is_alive(lease))
    }

    fn node(&self, incarnation: u64) -> &NodeRow {
        let at = usize::try_from(incarnation - 1).expect("a small number");
        &self.nodes[at]
    }

    pub(super) fn owner(&self, signer: Address) -> Option<(String, u64, u64)> {
        let lease = self.live(signer)?;
        Some((self.node(lease.owner).name.clone(), lease.owner, lease.token))
    }

    pub(super) fn token(&self, signer: Address) -> u64 {
        self.lease(signer).map_or(0, |lease| lease.token)
    }

    pub(super) fn cursor(&self, signer: Address) -> u64 {
        self.signers.get(&signer).map_or(0, |row| row.cursor)
    }

    pub(super) fn owner_of(&self, signer: Address) -> SignerOwner {
        match self.live(signer) {
            _ if !self.signers.contains_key(&signer) => SignerOwner::Unknown,
            None => SignerOwner::Free,
            Some(lease) => SignerOwner::Node(self.other(lease.owner)),
        }
    }

    fn other(&self, incarnation: u64) -> OtherOwner {
        let node = self.node(incarnation).name.clone();
        OtherOwner { url: format!("http://{node}"), node }
    }

    pub(super) fn acquire(&mut self, signer: Address, me: u64) -> Acquired {
        if !self.signers.contains_key(&signer) {
            return Acquired::Unknown;
        }
        let token = match self.live(signer) {
            Some(lease) if !self.is_same(lease.owner, me) => {
                return Acquired::Other(self.other(lease.owner));
            }
            Some(lease) => lease.token,
            None => self.token(signer) + 1,
        };
        let now = self.now();
        let expires = Some(now.after(self.duration));
        let row = self.signers.get_mut(&signer).expect("looked for above");
        if let Some(old) = row.lease.filter(|old| old.token != token) {
            row.before = Some((old, now));
        }
        row.lease = Some(LeaseRow { owner: me, token, expires });
        Acquired::Mine(Lease { signer, token })
    }

    pub(super) fn renew(&mut self, me: u64) -> Vec<Lease> {
        let now = self.now();
        let seen = &mut self.nodes[usize::try_from(me - 1).expect("a small number")].seen;
        *seen = seen.map(|_| now);
        let mine = |signer: &Address| self.live(*signer).is_some_and(|lease| lease.owner == me);
        let signers: Vec<Address> = self.signers.keys().filter(|at| mine(at)).copied().collect();
        let expires = Some(now.after(self.duration));
        let mut leases = Vec::new();
        for signer in signers {
            let row = self.signers.get_mut(&signer).and_then(|row| row.lease.as_mut());
            let lease = row.expect("it is alive");
            lease.expires = expires;
            leases.push(Lease { signer, token: lease.token });
        }
        leases
    }

    pub(super) fn leave(&mut self, me: u64) {
        self.nodes[usize::try_from(me - 1).expect("a small number")].seen = None;
    }

    pub(super) fn release(&mut self, lease: Lease, me: u64) -> Result<(), StoreError> {
        self.fence(lease, me)?;
        let row = self.signers.get_mut(&lease.signer).and_then(|row| row.lease.as_mut());
        row.expect("it is alive").expires = None;
        Ok(())
    }

    /// Refuses a process that does not own the signer now under this token.
    pub(super) fn fence(&mut self, lease: Lease, me: u64) -> Result<(), StoreError> {
        let live = self.live(lease.signer);
        if live.is_some_and(|live| self.is_same(live.owner, me) && live.token == lease.token) {
            return Ok(());
        }
        if self.bug == Some(StoreBug::NoFence) || self.passes_by_snapshot(lease, me) {
            return Ok(());
        }
        let found = self.lease(lease.signer).map(|lease| lease.token);
        self.fenced += 1;
        Err(StoreError::Fenced { found })
    }

    pub(super) fn plant(&mut self, bug: StoreBug) {
        self.bug = Some(bug);
    }

    pub(super) fn has_bug(&self, bug: StoreBug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether two processes count as one.
    fn is_same(&self, owner: u64, me: u64) -> bool {
        let has_its_name = || self.node(owner).name == self.node(me).name;
        owner == me || (self.has_bug(StoreBug::NameIsOwner) && has_its_name())
    }

    fn passes_by_snapshot(&self, lease: Lease, me: u64) -> bool {
        let before = self.signers.get(&lease.signer).and_then(|row| row.before);
        self.has_bug(StoreBug::SnapshotFence)
            && before.is_some_and(|(old, end)| {
                let is_recent = self.now().since(end) < Duration::from_secs(3);
                old.owner == me && old.token == lease.token && is_recent
            })
    }

    /// Judges a statement that writes rows: no later owner has the signer (CL1).
    pub(super) fn writes_as(&self, lease: Lease) {
        let (token, newest) = (lease.token, self.token(lease.signer));
        assert_eq!(token, newest, "CL1: token {token} writes for {}", lease.signer);
    }

    pub(super) fn wanting(&self, most: u32, me: u64) -> Wanting {
        let mut oldest: BTreeMap<Address, u64> = BTreeMap::new();
        let open = self.rows.values().filter(|row| !row.tx.state.is_terminal());
        for row in open {
            let kept = oldest.entry(row.tx.new.signer).or_insert(row.made);
            *kept = row.made.min(*kept);
        }
        let open_signers = u32::try_from(oldest.len()).expect("a few");
        let unowned = oldest.keys().filter(|signer| self.live(**signer).is_none()).count();
        let unowned = u32::try_from(unowned).expect("a few");
        let with_rows: BTreeSet<Address> = oldest.keys().copied().collect();
        // A row that ended is looked at until it is final.
        for row in self.rows.values().filter(|row| !row.tx.is_final) {
            let kept = oldest.entry(row.tx.new.signer).or_insert(row.made);
            *kept = row.made.min(*kept);
        }
        let commands = self.commands.values().filter(|row| row.end.is_none());
        for row in commands {
            oldest.entry(row.signer).or_insert(u64::MAX);
        }
        let now = self.now();
        let others = oldest.keys().filter_map(|signer| self.live(*signer));
        let others = others.filter(|lease| !self.is_same(lease.owner, me));
        let ends = others.filter_map(|lease| Some(lease.expires?.after(self.skew).since(now)));
        let next_end = ends.min();
        let has_command: BTreeSet<Address> =
            self.commands.values().filter(|row| row.end.is_none()).map(|row| row.signer).collect();
        let is_over =
            |signer: &Address| !with_rows.contains(signer) && !has_command.contains(signer);
        let mut free: Vec<(bool, u64, Address)> = oldest
            .into_iter()
            .filter(|(signer, _)| self.live(*signer).is_none())
            .map(|(signer, made)| (is_over(&signer), made, signer))
            .collect();
        free.sort_unstable();
        free.truncate(usize::try_from(most).expect("a few"));
        let seen = |node: &&NodeRow| node.seen.is_some_and(|seen| now.since(seen) <= self.duration);
        Wanting {
            signers: free.into_iter().map(|(_, _, signer)| signer).collect(),
            live_nodes: u32::try_from(self.nodes.iter().filter(seen).count()).expect("a few"),
            open_signers,
            unowned,
            next_end,
        }
    }
}
