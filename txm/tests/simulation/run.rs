//! One run: it puts the parts together, lets things happen, heals everything, and judges.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::fee::GasPrice;
use chain::payload::TxPayload;
use chain::tx::{FailCode, NewTx};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};
use txm::model::chain::{Contract, Fate, Lie, ModelChain};
use txm::model::store::{ModelDatabase, StoreBug};
use txm::model::wallet::Wallet;
use txm::model::{self, Draw};
use txm::options::{ExternalUse, Finality, TxmOptions};
use txm::signer::Unsigned;
use txm::store::CommandWish;

use super::crowd::{Crowd, Wanted};
use super::judge::{Judge, REQUIRED};
use super::process::Process;
use super::shim::{Keys, Shared, Shim, Site};
use super::tally::Tally;
use super::{Broken, Planted};

const GWEI: u128 = 1_000_000_000;
/// The steps of a run before it heals.
const STEPS: u64 = 30;
/// The longest time to heal, in blocks of a second.
const QUIET: u64 = 400;
/// The account that becomes a contract, and then fails each call.
const TRAP: Address = Address::repeat_byte(0xcc);

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// What happened, and at the end all rows.
    pub steps: Vec<String>,
    /// Events, counted by name.
    pub tally: BTreeMap<String, u64>,
    /// The first law that was broken.
    pub broken: Option<Broken>,
}

/// Runs a seed.
pub(super) fn run(seed: u64, planted: Option<Planted>) -> Run {
    let tally = Arc::new(Tally::default());
    let steps: Arc<Mutex<Vec<String>>> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let done = metrics::with_local_recorder(&*tally, || {
        let world = async { World::new(seed, planted, &tally, &steps).live().await };
        catch_unwind(AssertUnwindSafe(|| runtime.block_on(world)))
    });
    // The tasks that are left end here.
    drop(runtime);
    let broken = done.err().map(|panic| Broken::of(words(&*panic)));
    let steps = std::mem::take(&mut *steps.lock());
    Run { steps, tally: tally.counts(), broken }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic".to_owned())
}

struct World {
    draw: Draw,
    planted: Option<Planted>,
    options: TxmOptions,
    database: Shared,
    chain: ModelChain,
    endpoints: usize,
    keys: Arc<BTreeMap<Address, Wallet>>,
    signers: Vec<Address>,
    sent: Arc<Mutex<BTreeSet<Bytes>>>,
    keys_away: Arc<Mutex<u32>>,
    processes: Vec<Process>,
    /// Paused processes with a successor of their name.
    old: Vec<Process>,
    started: u64,
    crowd: Crowd,
    clients: Vec<JoinHandle<()>>,
    judge: Judge,
    backup: Option<ModelDatabase>,
    /// The highest token and cursor of each signer that the nodes have seen: the guard of their
    /// data directories.
    witness: BTreeMap<Address, (u64, u64)>,
    /// Transactions of another wallet in the pools.
    pooled: Vec<B256>,
    /// The key is used elsewhere in this run; a database is restored in it.
    has_foreign: bool,
    has_restore: bool,
    began: Instant,
    tally: Arc<Tally>,
    steps: Arc<Mutex<Vec<String>>>,
}

fn options(endpoints: usize, planted: Option<Planted>) -> TxmOptions {
    let seconds = Duration::from_secs;
    let is_early = planted == Some(Planted::FinalTooEarly);
    let follows = planted == Some(Planted::CursorFollowsChain);
    TxmOptions {
        quorum: if endpoints == 1 { 1 } else { 2 },
        arrivals_poll: Duration::from_millis(500),
        lease_duration: seconds(6),
        lease_renew: seconds(2),
        nonce_state_timeout: seconds(15),
        external_use: if follows { ExternalUse::Follow } else { ExternalUse::Refuse },
        fill_after: seconds(60),
        in_flight_max: 4,
        resubmit_interval: seconds(8),
        bump_after: 1,
        required: if is_early { REQUIRED - 1 } else { REQUIRED },
        finality: if is_early { Finality::Count } else { Finality::Finalized },
        stale: seconds(20),
        receipt_workers: 4,
        watch_blocks: 32,
        release_blind: seconds(15),
        shutdown_timeout: seconds(5),
        ..model::options()
    }
}

impl World {
    fn new(
        seed: u64,
        planted: Option<Planted>,
        tally: &Arc<Tally>,
        steps: &Arc<Mutex<Vec<String>>>,
    ) -> World {
        let mut draw = Draw::new(seed);
        // The first numbers of near seeds are near.
        for _ in 0..8 {
            draw.below(2);
        }
        let endpoints = 1 + usize::try_from(draw.below(3)).expect("a few");
        let mut options = options(endpoints, planted);
        let wallets = 1 + draw.below(3);
        let kind = draw.below(10);
        let is_of_restore = matches!(
            planted,
            Some(Planted::CursorFollowsChain | Planted::NoRestoreGuard | Planted::ForgottenIsTaken)
        );
        let has_restore = kind == 0 || is_of_restore;
        let follows = (kind == 2 || planted == Some(Planted::FillsAnyNonce)) && !has_restore;
        if follows {
            options.external_use = ExternalUse::Follow;
        }
        // Two owners that one look wakes go on in any order, and an endpoint's lies fall on another
        // one: a shared key is one signer, so that its seeds do the same again.
        let wallets = (1..=if follows { 1 } else { wallets }).map(Wallet::new);
        let keys: BTreeMap<Address, Wallet> =
            wallets.map(|wallet| (wallet.address(), wallet)).collect();
        let signers: Vec<Address> = keys.keys().copied().collect();
        let database = ModelDatabase::new(options.lease_duration, options.lease_skew);
        let chain = ModelChain::new(options.chain_id, endpoints);
        chain.set_depths(2, 5);
        chain.mine(8);
        for signer in &signers {
            database.add_signer(*signer, 0);
            chain.fund(*signer, U256::from(1_000_000_000 * GWEI));
        }
        (0..endpoints).for_each(|at| chain.set_latency(at, Duration::from_millis(20)));
        if let Some(bug) = planted.and_then(store_bug) {
            database.plant(bug);
        }
        World {
            draw,
            planted,
            options,
            database: Arc::new(Mutex::new(database)),
            chain,
            endpoints,
            keys: Arc::new(keys),
            signers,
            sent: Arc::default(),
            keys_away: Arc::default(),
            processes: Vec::new(),
            old: Vec::new(),
            started: 0,
            crowd: Crowd::default(),
            clients: Vec::new(),
            judge: Judge::default(),
            backup: None,
            witness: BTreeMap::new(),
            pooled: Vec::new(),
            has_foreign: (kind == 1 && !has_restore) || follows,
            has_restore,
            began: Instant::now(),
            tally: Arc::clone(tally),
            steps: Arc::clone(steps),
        }
    }

    async fn live(mut self) {
        let nodes = 1 + self.draw.below(3);
        for name in 0..nodes {
            self.start(&format!("node {name}"));
        }
        self.invite();
        for _ in 0..STEPS {
            sleep(Duration::from_millis(self.draw.below(2_400))).await;
            self.happens().await;
            self.look().await;
        }
        self.heal().await;
        let suspended = self.suspended();
        let database = self.database.lock().clone();
        for row in database.rows() {
            self.log(format!("{row:?}"));
            self.tally.note(&format!("{:?} {:?}", row.state, row.code));
            if row.new.is_fill() && row.code == Some(FailCode::Filled) {
                self.tally.note("jumped nonces filled");
            }
        }
        if self.signers.iter().any(|signer| !database.jumped(*signer).is_empty()) {
            self.tally.note("jumped nonces mined");
        }
        let refused = self.tally.of("SIGNER_SUSPENDED");
        let has_cause =
            self.judge.is_restored || !self.judge.foreign.is_empty() || self.has_false_counts();
        assert!(refused == 0 || has_cause, "CL9: {refused} refusals of signers without a cause");
        self.judge.end(&database, &self.chain, &self.signers, &suspended);
    }

    /// Whether an endpoint was told to say wrong counts.
    fn has_false_counts(&self) -> bool {
        (1..=3).any(|more| self.tally.of(&format!("lies CountAhead({more})")) > 0)
    }

    fn log(&self, what: String) {
        self.steps.lock().push(format!("{:?} {what}", self.began.elapsed()));
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.draw.below(count.max(1) as u64)).expect("a small number")
    }

    fn start(&mut self, name: &str) {
        self.started += 1;
        let database = self.database.lock().clone();
        self.guard(&database);
        let store = database.start(name);
        store.delay(Duration::from_millis(2));
        store.shake(self.draw.below(u64::MAX), 30);
        let sites: Vec<Site> = self
            .chain
            .endpoints()
            .into_iter()
            .map(|inner| Site {
                inner,
                database: Arc::clone(&self.database),
                keys: Arc::clone(&self.keys),
                sent: Arc::clone(&self.sent),
                planted: self.planted,
            })
            .collect();
        let keys = Keys {
            keys: Arc::clone(&self.keys),
            site: sites[0].clone(),
            planted: self.planted,
            away: Arc::clone(&self.keys_away),
        };
        let store = Shim { inner: store, database, planted: self.planted };
        let process = Process::start(name, store, sites, keys, self.options.clone());
        self.processes.push(process);
        self.open_desks();
    }

    /// A node that starts on an older database suspends every signer.
    fn guard(&mut self, database: &ModelDatabase) {
        let is_older = self.signers.iter().any(|signer| {
            let (token, cursor) = self.witness.get(signer).copied().unwrap_or_default();
            database.token(*signer) < token || database.cursor(*signer) < cursor
        });
        let is_planted =
            matches!(self.planted, Some(Planted::CursorFollowsChain | Planted::NoRestoreGuard));
        if is_older && !is_planted {
            self.tally.note("older databases noticed");
            for signer in &self.signers {
                database.suspend(*signer, "DATABASE_RESTORED", "txm");
            }
        }
    }

    /// The nodes keep the highest that they have seen.
    fn witness(&mut self) {
        let database = self.database.lock().clone();
        for signer in &self.signers {
            let (token, cursor) = self.witness.entry(*signer).or_default();
            *token = database.token(*signer).max(*token);
            *cursor = database.cursor(*signer).max(*cursor);
        }
    }

    fn open_desks(&self) {
        let running = self.processes.iter().filter(|it| !it.is_paused());
        *self.crowd.desks.lock() = running.map(|it| it.desk.clone()).collect();
    }

    /// Spawns the clients. Some give the business key of another one, at another signer.
    fn invite(&mut self) {
        let count = 4 + self.draw.below(8);
        let mut earlier: Vec<NewTx> = Vec::new();
        for number in 0..count {
            let at = self.one_of(self.signers.len());
            let signer = self.signers[at];
            let (mut key, mut value) = (format!("key {number}"), 1_000 + number);
            if let Some(other) = earlier.get(self.one_of(earlier.len()))
                && self.draw.below(6) == 0
            {
                value = u64::try_from(other.payload.value).expect("a small value");
                key = other.business_key.clone().expect("each has one");
            }
            let trapped = self.draw.below(8) == 0;
            let later = self.draw.below(3) == 0;
            let at = Duration::from_millis(self.draw.below(30_000));
            let is_timed = later && self.draw.below(4) == 0;
            let until = at + Duration::from_millis(self.draw.below(6_000));
            let payload = TxPayload {
                to: if trapped { TRAP } else { Address::repeat_byte(0xaa) },
                value: U256::from(value),
                data: Bytes::new(),
                token: None,
                gas: None,
            };
            let request = NewTx {
                signer,
                request_id: format!("request {number}"),
                business_key: Some(key),
                payload,
                gas: None,
                deadline_ms: is_timed.then(|| i64::try_from(until.as_millis()).expect("soon")),
            };
            earlier.push(request.clone());
            let repeats = u32::try_from(self.draw.below(3)).expect("a few");
            let wanted = Wanted { at, request, later, repeats };
            let draw = Draw::new(self.draw.below(u64::MAX));
            self.clients.push(self.crowd.spawn(wanted, draw, Arc::clone(&self.tally)));
        }
    }

    /// Looks for broken laws, and for panics of tasks.
    async fn look(&mut self) {
        for at in (0..self.processes.len()).rev() {
            if self.processes[at].is_over() {
                self.processes.remove(at).kill().await;
                self.open_desks();
            }
        }
        for at in (0..self.old.len()).rev() {
            if self.old[at].is_over() {
                self.old.remove(at).kill().await;
            }
        }
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].is_finished()
                && let Err(error) = self.clients.remove(at).await
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        let database = self.database.lock().clone();
        self.judge.look(&database);
    }

    fn suspended(&self) -> BTreeMap<Address, Vec<String>> {
        let database = self.database.lock();
        let of = |signer: &Address| {
            let reasons: Vec<String> = database.suspensions(*signer);
            (!reasons.is_empty()).then_some((*signer, reasons))
        };
        self.signers.iter().filter_map(of).collect()
    }
}

fn store_bug(planted: Planted) -> Option<StoreBug> {
    match planted {
        Planted::NoFence => Some(StoreBug::NoFence),
        Planted::SnapshotFence => Some(StoreBug::SnapshotFence),
        Planted::TokenOfName => Some(StoreBug::NameIsOwner),
        Planted::PreparedTwice => Some(StoreBug::NumbersAgain),
        Planted::NoVersion => Some(StoreBug::NoVersion),
        Planted::FillsAnyNonce => Some(StoreBug::FillsAnyNonce),
        _ => None,
    }
}

/// The things that happen.
impl World {
    async fn happens(&mut self) {
        match self.draw.below(24) {
            0..=5 => {
                self.log("a block".to_owned());
                self.chain.mine(1);
            }
            6 | 7 => self.reorganize(),
            8..=10 => self.lie(),
            11 => self.part_endpoint(),
            12 => self.command(),
            13 | 14 => self.pause(),
            15 => self.kill().await,
            16 => self.twin(),
            17 => self.cut(),
            18 => self.forget(),
            19 => {
                let fee = 1 + u128::from(self.draw.below(6));
                self.log(format!("base fee {fee}"));
                self.chain.set_base_fee(GWEI * fee);
            }
            20 => {
                self.log("the pools gossip".to_owned());
                self.chain.gossip();
            }
            21 => self.use_elsewhere(),
            22 => self.restore().await,
            _ => self.change(),
        }
    }

    fn reorganize(&mut self) {
        let fates = [Fate::Kept, Fate::Moved, Fate::Pooled, Fate::Lost];
        let fate = &fates[self.one_of(4)];
        let depth = 1 + self.draw.below(3);
        self.log(format!("reorg of {depth}: {fate:?}"));
        self.tally.note("reorgs");
        self.chain.reorg(depth, fate);
    }

    fn lie(&mut self) {
        let words = [
            "nonce too low",
            "already known",
            "replacement transaction underpriced",
            "txpool is full",
            "internal error",
            "transaction underpriced",
        ];
        let text = words[self.one_of(6)].to_owned();
        // Lies that one endpoint alone could make believe need another one that disagrees, and
        // those for which it is set aside, for ten minutes or for good, need a quorum without it.
        let kinds = [6, 10, 12][self.endpoints - 1];
        let lie = match self.draw.below(kinds) {
            0 => Lie::LostAnswer,
            1 => Lie::LostCall,
            2 => Lie::Refuses(text),
            3 => Lie::TakesAndSays(text),
            4 => Lie::NoReceipt,
            5 => Lie::OldHead(2),
            6 => Lie::OtherStatus,
            7 => Lie::OtherBlock,
            8 => Lie::OwnParent,
            9 => Lie::CountAhead(1 + self.draw.below(3)),
            10 => Lie::AllFinal,
            _ => Lie::OtherHash,
        };
        let is_grave = !matches!(
            lie,
            Lie::LostAnswer
                | Lie::LostCall
                | Lie::Refuses(_)
                | Lie::TakesAndSays(_)
                | Lie::NoReceipt
                | Lie::OldHead(_)
        );
        let at = if is_grave { 0 } else { self.one_of(self.endpoints) };
        let times = 1 + u32::try_from(self.draw.below(3)).expect("a few");
        self.log(format!("endpoint {at}, {times} times: {lie:?}"));
        self.tally.note(&format!("lies {lie:?}"));
        self.chain.lie(at, lie, times);
    }

    fn part_endpoint(&mut self) {
        let at = self.one_of(self.endpoints);
        match self.draw.below(4) {
            0 => {
                let is_away = self.draw.below(2) == 0;
                self.log(format!("endpoint {at} is away: {is_away}"));
                self.tally.note("endpoints away");
                self.chain.set_away(at, is_away);
            }
            1 => {
                let blocks = self.draw.below(4);
                self.log(format!("endpoint {at} lags by {blocks}"));
                self.tally.note("endpoints lag");
                self.chain.lag(at, blocks);
            }
            2 => {
                // A longer branch would make blocks final that a reorganization still takes away.
                let depth = 1 + self.draw.below(3);
                let blocks = 1 + self.draw.below(depth + 2);
                self.log(format!("endpoint {at} forks {depth} below, by {blocks}"));
                self.tally.note("endpoints fork");
                self.chain.fork(at, depth, blocks);
            }
            _ => {
                *self.keys_away.lock() = 1 + u32::try_from(self.draw.below(3)).expect("a few");
                self.log("the keys are away".to_owned());
            }
        }
    }

    fn command(&mut self) {
        let database = self.database.lock().clone();
        let rows = database.rows();
        let Some(row) = rows.get(self.one_of(rows.len())) else { return };
        let wish = match self.draw.below(6) {
            0..=2 => CommandWish::Cancel,
            3 => CommandWish::Fill,
            _ => CommandWish::Resubmit,
        };
        self.log(format!("{wish:?} of {}", row.id));
        self.tally.note(&format!("commands {wish:?}"));
        database.command(row.new.signer, Some(row.id), wish);
    }

    /// Pauses a process, or lets a paused one go on.
    fn pause(&mut self) {
        if !self.old.is_empty() && self.draw.below(2) == 0 {
            let old = self.old.remove(0);
            self.log(format!("the old {} goes on", old.name));
            old.pause(false);
            // It learns that it is over, and ends some day.
            self.processes.push(old);
            self.open_desks();
            return;
        }
        let at = self.one_of(self.processes.len());
        let Some(process) = self.processes.get(at) else { return };
        let is_paused = !process.is_paused();
        process.pause(is_paused);
        self.log(format!("{} is paused: {is_paused}", process.name));
        self.tally.note("pauses");
        self.open_desks();
    }

    async fn kill(&mut self) {
        let at = self.one_of(self.processes.len());
        if at >= self.processes.len() {
            return;
        }
        let process = self.processes.remove(at);
        let name = process.name.clone();
        if self.draw.below(3) == 0 && !process.is_paused() {
            self.log(format!("{name} stops"));
            self.tally.note("stops");
            process.stop();
            self.old.push(process);
        } else {
            self.log(format!("{name} is killed"));
            self.tally.note("kills");
            process.kill().await;
        }
        let fresh = format!("node {}", 10 + self.started);
        let next = if self.draw.below(2) == 0 { name } else { fresh };
        self.start(&next);
    }

    /// A process is paused, and another one of its name starts: its machine came back elsewhere.
    fn twin(&mut self) {
        let at = self.one_of(self.processes.len());
        if at >= self.processes.len() {
            return;
        }
        let process = self.processes.remove(at);
        process.pause(true);
        let name = process.name.clone();
        self.log(format!("{name} is paused, and has a twin"));
        self.tally.note("twins");
        self.old.push(process);
        self.start(&name);
    }

    fn cut(&mut self) {
        let at = self.one_of(self.processes.len());
        let is_cut = self.draw.below(3) > 0;
        let Some(process) = self.processes.get(at) else { return };
        process.store.cut(is_cut);
        self.log(format!("{} is cut off: {is_cut}", process.name));
        self.tally.note("cuts");
    }

    fn forget(&mut self) {
        let rows = self.database.lock().rows();
        let attempts: Vec<_> = rows.iter().flat_map(|row| &row.attempts).collect();
        // A lost transaction behind a restore could come back, and no count would tell of it.
        if let Some(attempt) = attempts.get(self.one_of(attempts.len()))
            && !self.has_restore
        {
            self.log(format!("the pools forget {}", attempt.hash));
            self.tally.note("forgotten");
            self.chain.forget(attempt.hash);
        }
    }

    /// The key signs in another wallet: for the next block, or for the pools, which may lose it.
    fn use_elsewhere(&mut self) {
        if !self.has_foreign {
            return;
        }
        let follows = self.options.external_use == ExternalUse::Follow;
        if follows && !self.pooled.is_empty() && self.draw.below(2) == 0 {
            let hash = self.pooled.remove(0);
            self.log(format!("the pools forget {hash} of another wallet"));
            self.chain.forget(hash);
            return;
        }
        let at = self.one_of(self.signers.len());
        let signer = self.signers[at];
        let is_pooled = follows && self.draw.below(3) > 0;
        let nonce = match is_pooled {
            true => Some(self.chain.pending(signer)),
            false => (0..).find(|nonce| self.chain.mined(signer, *nonce).is_none()),
        };
        let unsigned = Unsigned {
            chain_id: self.options.chain_id,
            signer,
            nonce: nonce.expect("some nonce is free"),
            to: Address::repeat_byte(0xbb),
            value: U256::from(900_000 + self.judge.foreign.len() as u64),
            data: Bytes::new(),
            gas: 21_000,
            price: GasPrice { max_fee: 20 * GWEI, max_tip: 2 * GWEI },
            is_legacy: false,
        };
        let signed = self.keys[&signer].sign(&unsigned);
        self.log(format!("{signer} is used elsewhere: {nonce:?}, {}", signed.hash));
        self.tally.note("used elsewhere");
        self.judge.foreign.insert(signed.hash);
        if is_pooled {
            self.pooled.push(signed.hash);
            self.chain.pool_outside(&signed.raw);
        } else {
            self.chain.submit_outside(&signed.raw);
        }
    }

    /// Takes a backup; later, the database is that backup, and all processes are new.
    async fn restore(&mut self) {
        if !self.has_restore || self.judge.is_restored {
            return;
        }
        let Some(backup) = self.backup.take() else {
            self.log("a backup, and the base fee rises".to_owned());
            self.backup = Some(self.database.lock().backup());
            // Prices are raised, by attempts that the backup lacks.
            self.chain.set_base_fee(5 * GWEI);
            return;
        };
        self.log("the backup is restored".to_owned());
        self.tally.note("restores");
        for process in self.processes.drain(..).chain(self.old.drain(..)) {
            process.kill().await;
        }
        for at in 0..self.endpoints {
            self.chain.set_away(at, false);
            self.chain.lag(at, 0);
        }
        self.chain.tell_the_truth();
        self.chain.gossip();
        self.chain.mine(2);
        self.witness();
        *self.database.lock() = backup;
        *self.crowd.epoch.lock() += 1;
        self.judge.is_restored = true;
        for name in 0..2 {
            self.start(&format!("restored {name}"));
        }
    }

    /// A new node, or a contract where an account was.
    fn change(&mut self) {
        if self.draw.below(3) == 0 {
            self.log("the trap is a contract".to_owned());
            self.chain.deploy(TRAP, Contract::Reverts);
        } else if self.processes.len() < 3 {
            let name = format!("node {}", 10 + self.started);
            self.log(format!("{name} comes"));
            self.start(&name);
        }
    }

    /// Everything works again, and the chain goes on, until every row has its end.
    async fn heal(&mut self) {
        self.log("all heals".to_owned());
        *self.keys_away.lock() = 0;
        self.chain.tell_the_truth();
        self.chain.set_base_fee(GWEI);
        for at in 0..self.endpoints {
            self.chain.set_away(at, false);
            self.chain.lag(at, 0);
        }
        for process in self.processes.iter().chain(&self.old) {
            process.store.cut(false);
            process.store.shake(0, 0);
            process.pause(false);
        }
        self.open_desks();
        if self.processes.is_empty() {
            self.start("the last");
        }
        let is_odd = self.judge.is_restored || !self.judge.foreign.is_empty();
        for second in 0..QUIET {
            self.chain.gossip();
            self.chain.mine(1);
            sleep(Duration::from_secs(1)).await;
            self.look().await;
            let database = self.database.lock().clone();
            let suspended = self.suspended();
            if !is_odd {
                self.resume(&database, &suspended);
            }
            let is_waiting = |signer: &Address| is_odd && suspended.contains_key(signer);
            let rows = database.rows();
            let is_over =
                rows.iter().all(|row| row.state.is_terminal() || is_waiting(&row.new.signer));
            let has_clients = !self.clients.is_empty() && suspended.is_empty();
            if is_over && !has_clients && second > 40 {
                break;
            }
        }
    }

    /// A person lifts the suspension of a lie.
    fn resume(&self, database: &ModelDatabase, suspended: &BTreeMap<Address, Vec<String>>) {
        for (signer, reasons) in suspended {
            for reason in reasons {
                let alert = format!("ubscore_tx_alert_total {reason}");
                assert!(self.tally.of(&alert) > 0, "CL9: {signer} is suspended without an alert");
                let is_known = self.has_false_counts() && reason == "NONCE_AHEAD";
                assert!(is_known, "CL9: {reason} without a cause");
                database.resume(*signer, reason);
            }
        }
    }
}
