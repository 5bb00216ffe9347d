//! A site with recharges: the simulator of payment channels beside its servers.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::{Door, Reply, Server, Site, eventually, replace, run_directory, text};

/// The secret of proofs of a test's deployment.
const PROOF_SECRET: &str = "a test's secret of proofs, of more than 32 bytes";
/// The files of the secret of proofs, and of the one before it.
const SECRETS: [&str; 2] = ["test_proof_secret", "test_previous_proof_secret"];
/// Long enough for the answer of a channel on a slow machine, ms.
const WAIT_MS: u32 = 60_000;

/// A running `ubscore channel-sim`. Dropping it kills it; its directory stays for a successor.
pub(crate) struct ChannelSim {
    child: Mutex<Child>,
    address: SocketAddr,
    directory: PathBuf,
}

impl Drop for ChannelSim {
    fn drop(&mut self) {
        self.die();
    }
}

impl ChannelSim {
    pub(crate) fn start(more: &[&OsStr]) -> ChannelSim {
        ChannelSim::start_in(run_directory("channel-sim"), more)
    }

    fn start_in(directory: PathBuf, more: &[&OsStr]) -> ChannelSim {
        let (child, address) = ChannelSim::run(&directory, "127.0.0.1:0", more);
        ChannelSim { child: Mutex::new(child), address, directory }
    }

    fn run(directory: &Path, listen: &str, more: &[&OsStr]) -> (Child, SocketAddr) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["channel-sim", "--listen", listen, "--data-dir"])
            .arg(directory)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("ubscore channel-sim ready http=");
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
        (child, address)
    }

    /// SIGKILL. It may have ended before.
    fn die(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }

    /// SIGKILL, and a start at the same address, with the same books and without faults.
    pub(crate) fn dies_and_returns(&self) {
        self.die();
        let (child, _) = ChannelSim::run(&self.directory, &self.address.to_string(), &[]);
        *self.child.lock().expect("no panic") = child;
    }

    /// Where it listens.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// The text of one of its files.
    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.directory.join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A request of a person or a test: its status and its answer as JSON.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.try_ask(method, path, body).expect("an answer")
    }

    /// The same of a simulator that may die meanwhile.
    pub(crate) fn try_ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}{path}", self.base());
        let answer = match method {
            "GET" => agent.get(url).call(),
            "PUT" => agent.put(url).send(body.to_string()),
            _ => agent.post(url).send(body.to_string()),
        };
        let mut answer = answer.ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), serde_json::from_str(&text).ok()?))
    }

    /// The same, which must succeed.
    pub(crate) fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// A person pays an order.
    pub(crate) fn pay(&self, recharge_id: &str) -> Value {
        self.done("POST", &format!("/pay/{recharge_id}"), &json!({}))
    }

    /// Makes it fail; `{}`: it works again.
    pub(crate) fn faults(&self, faults: &Value) {
        self.done("PUT", "/sim/faults", faults);
    }
}

/// A site with the channels `wechat` and `card` of a simulator, for all its servers.
pub(crate) struct Recharging {
    pub(crate) site: Site,
    pub(crate) sim: ChannelSim,
}

impl Recharging {
    pub(crate) fn new() -> Recharging {
        Recharging::on(Site::new())
    }

    /// The same on a site with more configuration.
    pub(crate) fn on(site: Site) -> Recharging {
        Recharging::beside(site, ChannelSim::start(&[]))
    }

    /// The same with a simulator that calls back over TLS, and trusts the issuers of a file.
    pub(crate) fn trusting(site: Site, issuers: &Path) -> Recharging {
        Recharging::beside(site, ChannelSim::start(&["--ca".as_ref(), issuers.as_ref()]))
    }

    /// The same with a simulator that has these books already.
    pub(crate) fn with_books(site: Site, books: &str) -> Recharging {
        let directory = run_directory("channel-sim");
        fs::create_dir(&directory).expect("a new directory");
        fs::write(directory.join("books.jsonl"), books).expect("written");
        Recharging::beside(site, ChannelSim::start_in(directory, &[]))
    }

    fn beside(site: Site, sim: ChannelSim) -> Recharging {
        fs::write(sim.path(SECRETS[0]), PROOF_SECRET).expect("written");
        fs::write(sim.path(SECRETS[1]), "").expect("written");
        let base = sim.base();
        let site = site
            .with("UBSCORE__RECHARGE__ENABLED", true)
            .with("UBSCORE__RECHARGE__DEPLOYMENT", "test")
            .with("UBSCORE__RECHARGE__PROOF_SECRET_FILE", sim.path(SECRETS[0]))
            .with("UBSCORE__RECHARGE__PREVIOUS_PROOF_SECRET_FILE", sim.path(SECRETS[1]))
            .with("UBSCORE__RECHARGE__CREATE_WAIT_MS", WAIT_MS)
            .with("UBSCORE__RECHARGE__QUERY_AFTER_MS", 500)
            .with("UBSCORE__RECHARGE__USER_CREATES_PER_MINUTE_MAX", 1_000)
            .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 120_000)
            .with("UBSCORE__CALLBACKS__LISTEN", "127.0.0.1:0");
        let common = [
            ("ASSET", "CNY"),
            ("CURRENCY", "CNY"),
            ("MINOR_DIGITS", "2"),
            ("MIN", "1"),
            ("MAX", "50000"),
            ("BASE_URL", &base),
        ];
        let wechat = [
            ("KIND", "wechat".to_owned()),
            ("MCHID", sim.file("mchid")),
            ("APPID", sim.file("appid")),
            ("MERCHANT_SERIAL", sim.file("merchant_serial")),
            ("MERCHANT_KEY_FILE", sim.path("merchant_key.pem")),
            ("API_V3_KEY_FILE", sim.path("api_v3_key")),
            ("PLATFORM_KEYS", sim.path("platform_1_certificate.pem")),
            ("CLOSE_AFTER_MS", "0".to_owned()),
        ];
        let card = [
            ("KIND", "stripe".to_owned()),
            ("API_KEY_FILE", sim.path("card_api_key")),
            ("WEBHOOK_SECRET_FILE", sim.path("card_webhook_secret")),
        ];
        let key = |name: &str, end: &str| format!("UBSCORE__CHANNELS__{name}__{end}");
        let mut site = site;
        for name in ["WECHAT", "CARD"] {
            site = common.iter().fold(site, |site, (end, value)| site.with(&key(name, end), value));
        }
        site = wechat.iter().fold(site, |site, (end, value)| site.with(&key("WECHAT", end), value));
        site = card.iter().fold(site, |site, (end, value)| site.with(&key("CARD", end), value));
        Recharging { site, sim }
    }

    /// The same with callbacks that come through a door, which outlives each server.
    pub(crate) fn behind_a_door(self) -> (Recharging, Door) {
        let door = Door::open();
        let site = self.site.clone().with("UBSCORE__CALLBACKS__PUBLIC_URL", door.url());
        let card = json!({"url": format!("{}/callbacks/v1/card", door.url())});
        self.sim.done("PUT", "/sim/card/callback_url", &card);
        (Recharging { site, sim: self.sim }, door)
    }

    /// Changes the secret of proofs, as an operator does: the present one first becomes the
    /// previous one.
    pub(crate) fn change_proof_secret(&self, secret: &str) {
        let [present, previous] = SECRETS.map(|name| self.sim.directory.join(name));
        replace(&previous, &fs::read_to_string(&present).expect("a secret"));
        replace(&present, secret);
    }

    /// The present secret of proofs.
    pub(crate) fn proof_secret(&self) -> String {
        self.sim.file(SECRETS[0])
    }

    /// Replaces the file of the present (0) or the previous secret (1) alone.
    pub(crate) fn write_proof_secret(&self, which: usize, text: &str) {
        replace(&self.sim.directory.join(SECRETS[which]), text);
    }

    /// Starts a server, and has the callbacks of cards sent to it. Orders of WeChat Pay name their
    /// listener themselves.
    pub(crate) fn start(&self) -> Server {
        self.called_back(self.site.start())
    }

    /// The same of a server that the test has started.
    pub(crate) fn called_back(&self, server: Server) -> Server {
        let callbacks = server.callbacks.expect("a listener of callbacks");
        let url = json!({"url": format!("http://{callbacks}/callbacks/v1/card")});
        self.sim.done("PUT", "/sim/card/callback_url", &url);
        server
    }
}

/// The body of a recharge of CNY through a channel.
pub(crate) fn recharge(amount: &str, channel: &str, idem_key: &str) -> Value {
    json!({"asset": "CNY", "amount": amount, "channel": channel, "idem_key": idem_key})
}

impl Server {
    /// Posts a recharge.
    pub(crate) fn recharge(&self, user: u64, body: &Value) -> Reply {
        self.ask(user, "POST", "/api/v1/recharge", Some(body))
    }

    /// Posts a recharge that must be PAYING. Returns its id.
    pub(crate) fn recharge_paying(&self, user: u64, body: &Value) -> String {
        let reply = self.recharge(user, body);
        assert_eq!((reply.status, &reply.json()["state"]), (201, &json!("PAYING")), "{reply:?}");
        text(&reply.json()["recharge_id"]).to_owned()
    }

    /// One recharge, as its owner reads it.
    pub(crate) fn recharge_of(&self, user: u64, recharge_id: &str) -> Value {
        let reply = self.get(user, &format!("/api/v1/recharge/{recharge_id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Waits until a recharge is in a state.
    pub(crate) fn recharge_is(&self, user: u64, recharge_id: &str, state: &str) -> Value {
        eventually(state, || {
            let body = self.recharge_of(user, recharge_id);
            (body["state"] == json!(state)).then_some(body)
        })
    }
}
