//! A site with recharges: the simulator of payment channels beside its servers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{Reply, Server, Site, eventually, run_directory, text};

/// The secret of proofs of a test's deployment.
const PROOF_SECRET: &str = "a test's secret of proofs, of more than 32 bytes";
/// Long enough for the answer of a channel on a slow machine, ms.
const WAIT_MS: u32 = 60_000;

/// A running `ubscore channel-sim`. Dropping it kills it; its directory stays for a successor.
pub(crate) struct ChannelSim {
    child: Child,
    address: SocketAddr,
    directory: PathBuf,
}

impl Drop for ChannelSim {
    fn drop(&mut self) {
        // It may have ended before.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl ChannelSim {
    pub(crate) fn start() -> ChannelSim {
        ChannelSim::start_in(run_directory("channel-sim"), "127.0.0.1:0")
    }

    fn start_in(directory: PathBuf, listen: &str) -> ChannelSim {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["channel-sim", "--listen", listen, "--data-dir"])
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("ubscore channel-sim ready http=");
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
        ChannelSim { child, address, directory }
    }

    /// SIGKILL, and a successor with the same directory and address.
    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().expect("running");
        self.child.wait().expect("a child");
        let (directory, listen) = (self.directory.clone(), self.address.to_string());
        *self = ChannelSim::start_in(directory, &listen);
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
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}{path}", self.base());
        let answer = match method {
            "GET" => agent.get(url).call(),
            "PUT" => agent.put(url).send(body.to_string()),
            _ => agent.post(url).send(body.to_string()),
        };
        let mut answer = answer.expect("an answer");
        let text = answer.body_mut().read_to_string().expect("text");
        (answer.status().as_u16(), serde_json::from_str(&text).expect("JSON"))
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
        let sim = ChannelSim::start();
        let base = sim.base();
        let site = site
            .with("UBSCORE__RECHARGE__ENABLED", true)
            .with("UBSCORE__RECHARGE__DEPLOYMENT", "test")
            .with("UBSCORE__RECHARGE__PROOF_SECRET", PROOF_SECRET)
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
