//! A database, a chain behind its endpoints, and the nodes of a test. When it ends, the chain is
//! compared with the rows.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256, U256};
use jsonwebtoken::{EncodingKey, Header};
use k256::ecdsa::SigningKey;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ubscore::config::auth::DEVELOPMENT_SECRET;

use super::{PAYEE, SIGNER};
use crate::harness::{
    CHAIN_ID, CLOCK_SHIFT, Chain, ChainProxy, KEYS, PATIENCE, Reply, Request, Site, cli,
    clock_library, eventually, hex_of, judge_chain, now_s, said, send, text, write_key_file,
    write_private,
};

/// The password of the key files.
const PASSWORD: &str = "a password of the tests";
/// Keys beside those of the chain's accounts.
const MORE_KEYS: [B256; 2] = [B256::repeat_byte(0x21), B256::repeat_byte(0x22)];
/// The time of a token, s. Nodes whose clock is an hour ahead take it too.
const TOKEN_S: u64 = 6 * 3_600;
/// The heads that an endpoint is asked for in one cycle, at most: latest, safe, finalized.
const HEADS_OF_A_CYCLE: usize = 3;

/// Settings beside those of [`Place::new`]: names behind `UBSCORE__TXM__`, and values.
pub(super) type Settings<'a> = &'a [(&'a str, &'a str)];

/// One test's database, chain and keys.
pub(super) struct Place {
    pub(super) site: Site,
    pub(super) chain: Chain,
    /// The endpoint of each node that has no other.
    pub(super) proxy: ChainProxy,
    /// The endpoints of nodes that have their own.
    others: Mutex<Vec<Arc<ChainProxy>>>,
    keys: PathBuf,
    password: PathBuf,
    settings: Vec<(String, String)>,
    /// Transactions of our signers that are not ours: the test made them.
    foreign: Mutex<Vec<B256>>,
    paid: AtomicU64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.judge();
        }
    }
}

/// The accounts of every key here: those of the chain, and two more.
pub(super) fn signers() -> Vec<Address> {
    let address = |key: &B256| {
        Address::from_private_key(&SigningKey::from_slice(key.as_slice()).expect("a key"))
    };
    KEYS.iter().chain(&MORE_KEYS).map(address).collect()
}

impl Place {
    /// With the keys of the first [`signers`], as files. Time is short, and two blocks are final.
    pub(super) fn with_signers(count: usize, settings: Settings) -> Place {
        let (site, chain) = (Site::new(), Chain::start());
        let proxy = ChainProxy::start(&chain);
        let (keys, password) = (site.fresh_path("keys"), site.fresh_path("password"));
        fs::create_dir(&keys).expect("a directory");
        for (place, key) in KEYS.iter().chain(&MORE_KEYS).take(count).enumerate() {
            write_key_file(&keys.join(format!("key-{place}")), *key, PASSWORD);
        }
        for signer in signers().iter().skip(KEYS.len()) {
            chain.set_balance(*signer, U256::from(10).pow(U256::from(18)));
        }
        write_private(&password, PASSWORD);
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let (settings, foreign) = (settings.collect(), Mutex::default());
        let (others, paid) = (Mutex::default(), AtomicU64::new(0));
        Place { site, chain, proxy, others, keys, password, settings, foreign, paid }
    }

    /// With [`SIGNER`].
    pub(super) fn new(settings: Settings) -> Place {
        Place::with_signers(1, settings)
    }

    /// A node, its signer added.
    pub(super) fn first_node(&self) -> Party {
        let node = self.node("txm-a", &[]);
        self.add(&node, SIGNER);
        node
    }

    /// Adds a signer.
    pub(super) fn add(&self, node: &Party, signer: Address) {
        let (exit, out, why) = node.operate(&["signer", "add", &hex_of(signer), "--reason", "x"]);
        assert_eq!(exit, 0, "{out}{why}");
    }

    /// The same place with a copy of its database, which no node uses: a backup.
    pub(super) fn backup(&self) -> Site {
        self.site.with_copied_database()
    }

    /// Puts a backup in the place of the database. No node runs.
    pub(super) fn restore(&mut self, backup: Site) {
        self.site = backup;
    }

    /// A node that is ready. Names that begin with `UBSCORE_`, and `LD_PRELOAD`, are whole ones.
    /// The others are those of [`Settings`].
    pub(super) fn node(&self, name: &str, more: Settings) -> Party {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["txm", "serve", "--dev", "--listen", "127.0.0.1:0"]);
        command.args(["--ops-listen", "127.0.0.1:0"]);
        let (chain_id, proxy, url) = (CHAIN_ID.to_string(), self.proxy.url(), self.site.url());
        let defaults = [
            ("NODE_ID", name),
            ("POSTGRES_URL", &url),
            ("CHAIN__CHAIN_ID", &chain_id),
            ("CHAIN__RPC_URLS", &proxy),
            ("CHAIN__POLL_MS", "50"),
            ("POLL_MS", "20"),
            ("LEASE__DURATION_MS", "1000"),
            ("LEASE__RENEW_INTERVAL_MS", "200"),
            ("LEASE__SKEW_MS", "100"),
            ("RESUBMIT__INTERVAL_MS", "300"),
            ("CONFIRMATIONS__REQUIRED", "2"),
            ("CONFIRMATIONS__POLICY", "count"),
        ];
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.into_iter().chain(own).chain(more.iter().copied()) {
            let is_whole = name.starts_with("UBSCORE_") || name == "LD_PRELOAD";
            let whole = if is_whole { name.to_owned() } else { format!("UBSCORE__TXM__{name}") };
            command.env(whole, value);
        }
        command.env("UBSCORE__DATA_DIR", &self.site.data_dir);
        command.env("UBSCORE__TXM__SIGNERS__KEYSTORE_DIR", &self.keys);
        command.env("UBSCORE__TXM__SIGNERS__PASSWORD_FILE", &self.password);
        Party::start(command)
    }

    /// A payment to [`PAYEE`] that no other one of this place has the value of.
    pub(super) fn payment(&self, request_id: &str) -> Value {
        let value = 1_000 + self.paid.fetch_add(1, Ordering::Relaxed);
        json!({
            "signer": hex_of(SIGNER), "requestId": request_id, "nonce": "later",
            "payload": {"to": hex_of(PAYEE), "value": value.to_string()},
        })
    }

    /// Asks a node, the owner or not, for a payment: its id.
    pub(super) fn pay(&self, node: &Party, request_id: &str) -> String {
        let reply = node.post("/api/v1/tx", &self.payment(request_id));
        assert_eq!(reply.status, 202, "{reply:?}");
        text(&reply.json()["txId"]).to_owned()
    }

    /// Payments one by one, each numbered before the next one is asked for.
    pub(super) fn pay_in_order(&self, node: &Party, ids: &[&str]) -> Vec<String> {
        let numbered = |id: &&str| {
            let id = self.pay(node, id);
            node.until(&id, "its nonce", |row| !row["nonce"].is_null());
            id
        };
        ids.iter().map(numbered).collect()
    }

    /// Mines a block each time the chain is looked at, until the row has ended.
    pub(super) fn end(&self, node: &Party, id: &str) -> Value {
        node.until(id, "its end", |row| {
            if row["final"] == json!(true) {
                return true;
            }
            self.chain.mine(1);
            self.looks(1);
            false
        })
    }

    /// Waits until the endpoint was asked for its head this many times more, each time by a cycle
    /// that began behind this call.
    pub(super) fn looks(&self, times: usize) {
        let asked = || self.proxy.calls("eth_getBlockByNumber");
        let enough = asked() + HEADS_OF_A_CYCLE * (times + 1);
        eventually("looks at the chain", || (asked() >= enough).then_some(()));
    }

    /// The token under which the signer is owned.
    pub(super) fn token(&self) -> u64 {
        let asked = "SELECT coalesce(max(fencing_token), 0) FROM txm.signer_lease";
        self.site.sql_value(asked).parse().expect("a number")
    }

    /// Waits for an owner with this name: its token.
    pub(super) fn owned_by(&self, name: &str) -> u64 {
        let asked = format!(
            "SELECT count(*) FROM txm.signer_lease WHERE owner_node = '{name}' \
             AND expires_at > clock_timestamp()"
        );
        eventually(name, || (self.site.sql_value(&asked) != "0").then_some(()));
        self.token()
    }

    /// Lets the judge know of a transaction that the test signed with a key of ours.
    pub(super) fn is_foreign(&self, hash: B256) {
        self.foreign.lock().expect("no panic").push(hash);
    }

    /// The raw bytes that left, each once.
    pub(super) fn sent(&self) -> BTreeSet<Vec<u8>> {
        self.proxy.raws().into_iter().collect()
    }

    /// One more endpoint. The judge looks at everything that leaves by it.
    pub(super) fn endpoint(&self, chain: &Chain) -> Arc<ChainProxy> {
        let endpoint = Arc::new(ChainProxy::start(chain));
        self.others.lock().expect("no panic").push(Arc::clone(&endpoint));
        endpoint
    }

    /// A node on a machine with a clock that is wrong by so many seconds.
    pub(super) fn node_with_clock(&self, name: &str, seconds: &str) -> Party {
        let library = clock_library().to_str().expect("text");
        self.node(name, &[("LD_PRELOAD", library), (CLOCK_SHIFT, seconds)])
    }

    /// Everything that left by any endpoint, with repetitions.
    fn left(&self) -> Vec<Vec<u8>> {
        let others = self.others.lock().expect("no panic");
        let others = others.iter().flat_map(|other| other.raws());
        self.proxy.raws().into_iter().chain(others).collect()
    }

    /// [`judge_chain`], and no two payments are the same: their values tell them apart without the
    /// rows.
    pub(super) fn judge(&self) {
        let foreign = self.foreign.lock().expect("no panic").clone();
        let mut paid = BTreeSet::new();
        for mined in judge_chain(&self.site.url(), self.chain.rpc(), || self.left(), &foreign) {
            let key = format!("{} {} {}", mined["from"], mined["to"], mined["value"]);
            let is_payment = text(&mined["to"]) == hex_of(PAYEE);
            assert!(paid.insert(key) || !is_payment, "paid twice: {mined}");
        }
    }
}

/// A running node, which is killed with this value.
pub(super) struct Party {
    process: Child,
    words: Arc<Mutex<String>>,
    /// The clients' listener.
    clients: SocketAddr,
    /// The operators' listener.
    ops: SocketAddr,
}

impl Drop for Party {
    fn drop(&mut self) {
        if thread::panicking() {
            let words = self.words();
            let from = words.len().saturating_sub(6_000);
            eprintln!("a node said last:\n{}", words.get(from..).unwrap_or(&words));
        }
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let words = Arc::new(Mutex::new(String::new()));
    let written = Arc::clone(&words);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let part = String::from_utf8_lossy(&buffer[..count]);
            written.lock().expect("no panic in a reader").push_str(&part);
        }
    });
    words
}

impl Party {
    fn start(mut command: Command) -> Party {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary");
        let words = drain(process.stderr.take().expect("piped"));
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("its output");
        // A full pipe would stop it.
        drain(out);
        let part = |key: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
            value.and_then(|value| value.parse().ok())
        };
        let (Some(clients), Some(ops)) = (part("txm="), part("ops=")) else {
            process.wait().ok();
            panic!("{line:?}: {}", words.lock().expect("no panic"));
        };
        Party { process, words, clients, ops }
    }

    /// Its stderr so far.
    pub(super) fn words(&self) -> String {
        self.words.lock().expect("no panic in a reader").clone()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("our own child");
    }

    /// SIGSTOP, and waits until no thread of it runs any more.
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
        eventually("a pause", || self.is_paused().then_some(()));
    }

    /// Whether all its threads stand still.
    pub(super) fn is_paused(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.process.id())) else {
            return false;
        };
        let mut stats = tasks.flatten().map(|task| fs::read_to_string(task.path().join("stat")));
        // A thread that has ended meanwhile does not run either.
        stats.all(|stat| {
            stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|it| it.starts_with(" T")))
        })
    }

    /// SIGCONT.
    pub(super) fn wake(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether it has ended.
    #[cfg(feature = "crash")]
    pub(super) fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("our own child").is_some()
    }

    /// Ends it by SIGKILL.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("its end");
    }

    /// Ends it by SIGTERM, in order.
    pub(super) fn stop(mut self) {
        self.signal(Signal::TERM);
        let ended = self.process.wait().expect("its end");
        assert_eq!(ended.code(), Some(0), "{}", self.words());
    }

    /// Asks the clients' listener.
    pub(super) fn get(&self, path: &str) -> Reply {
        send(self.clients, &Request::new(&service(), "GET", path)).expect("an answer")
    }

    /// Posts a body to the clients' listener.
    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        let token = service();
        let request = Request { body: Some(body), ..Request::new(&token, "POST", path) };
        send(self.clients, &request).expect("an answer")
    }

    /// Posts a body, and does not wait for the answer.
    #[cfg(feature = "crash")]
    pub(super) fn post_unheard(&self, path: &'static str, body: Value) {
        let clients = self.clients;
        thread::spawn(move || {
            let token = service();
            let request = Request { body: Some(&body), ..Request::new(&token, "POST", path) };
            drop(send(clients, &request));
        });
    }

    /// Posts until the node owns the signer and has asked the chain.
    pub(super) fn post_as_owner(&self, body: &Value) -> Reply {
        eventually("an answer that is not retryable", || {
            let reply = self.post("/api/v1/tx", body);
            let is_retryable = reply.status >= 500 || reply.body.contains("NOT_LEADER");
            (!is_retryable).then_some(reply)
        })
    }

    /// A transaction with everything that is kept of it; null while the node cannot read it.
    pub(super) fn row(&self, id: &str) -> Value {
        let reply = self.get(&format!("/api/v1/tx/{id}"));
        if reply.status == 200 { reply.json() } else { Value::Null }
    }

    /// Waits for a condition of a transaction, and returns the transaction.
    pub(super) fn until(&self, id: &str, what: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let row = self.row(id);
            if is(&row) {
                return row;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {row:#}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for this state and sub state.
    pub(super) fn becomes(&self, id: &str, state: &str, sub: Option<&str>) -> Value {
        self.until(id, &format!("{state} {sub:?}"), |row| {
            row["state"] == json!(state) && (sub.is_none() || row["subState"] == json!(sub))
        })
    }

    /// Runs a command of an operator on this node: its exit code, stdout and stderr.
    pub(super) fn operate(&self, arguments: &[&str]) -> (i32, String, String) {
        let url = format!("http://{}", self.ops);
        said(&cli(&[arguments, &["--dev", "--ops", &url]].concat()))
    }

    /// A metric's sum over its labels.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let token = operator(7, "viewer");
        let all = send(self.ops, &Request::new(&token, "GET", "/metrics")).expect("an answer").body;
        let values = all.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn signed(mut claims: Value) -> String {
    claims["exp"] = json!(now_s() + TOKEN_S);
    let key = EncodingKey::from_secret(DEVELOPMENT_SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token")
}

/// The token of a service that uses every signer here.
fn service() -> String {
    let signers: Vec<String> = signers().iter().map(hex_of).collect();
    signed(json!({"sub": "pay", "role": "service", "aud": "ubscore-txm", "signers": signers}))
}

/// The token of an operator.
pub(super) fn operator(user: u64, role: &str) -> String {
    signed(json!({"sub": user.to_string(), "role": role, "aud": "ubscore-txm"}))
}

impl Party {
    /// The feed behind a place: its events, and the next place. `None`: from the first one on.
    pub(super) fn feed(&self, after: Option<&str>) -> (Vec<Value>, String) {
        let behind = after.map(|place| format!("&after={place}")).unwrap_or_default();
        let reply = self.get(&format!("/api/v1/tx/events?limit=1000{behind}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        let page = reply.json();
        (page["events"].as_array().expect("events").clone(), text(&page["next"]).to_owned())
    }

    /// A command of an operator that must be taken.
    pub(super) fn command(&self, arguments: &[&str]) {
        let (exit, out, why) = self.operate(&[arguments, &["--reason", "a test"]].concat());
        assert_eq!(exit, 0, "{out}{why}");
    }

    /// Sends a signal. The process ends at the latest with this value.
    pub(super) fn send_signal(&self, signal: Signal) {
        self.signal(signal);
    }

    /// Whether it has ended. Nothing waits for it before its value ends.
    pub(super) fn is_gone(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        // The state follows the name, which is in brackets.
        stat.map_or(true, |stat| stat.rsplit(')').next().is_none_or(|it| it.starts_with(" Z")))
    }

    /// Asks the clients' listener of a node that may end meanwhile.
    pub(super) fn try_ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Reply> {
        let token = service();
        let request = Request { body, ..Request::new(&token, method, path) };
        send(self.clients, &request).ok()
    }
}

impl Place {
    /// Every event about a transaction, once the feed has all that were written. Each seq is there
    /// once, in order. A transaction of another test may delay the feed.
    pub(super) fn story(&self, node: &Party, id: &str) -> Vec<Value> {
        let last = format!("SELECT event_seq FROM txm.managed_tx WHERE tx_id = '{id}'");
        let events = eventually("its last event", || {
            let last: usize = self.site.sql_value(&last).parse().expect("a number");
            let (mut events, mut place) = (Vec::new(), None);
            loop {
                let (page, next) = node.feed(place.as_deref());
                if page.is_empty() {
                    break;
                }
                events.extend(page.into_iter().filter(|event| event["txId"] == json!(id)));
                place = Some(next);
            }
            (events.len() >= last).then_some(events)
        });
        let seqs: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
        assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>(), "{events:#?}");
        events
    }
}
