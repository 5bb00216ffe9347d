//! A running node, and tokens for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use alloy_primitives::Address;
use jsonwebtoken::{EncodingKey, Header};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ubscore::config::auth::DEVELOPMENT_SECRET;

use crate::harness::{
    CHAIN_ID, Chain, ChainProxy, KEYS, Reply, Request, Rpc, Site, cli, judge_chain, now_s, said,
    send, write_key_file, write_private,
};

/// The password of the key files.
const PASSWORD: &str = "a password of the tests";

/// A node, which is killed with this value. Behind its end the chain and everything that left it
/// are compared with the rows.
pub(super) struct Node {
    process: Child,
    /// Its endpoint.
    proxy: ChainProxy,
    chain: Rpc,
    database: String,
    is_judged: bool,
    /// The clients' listener.
    pub(super) clients: SocketAddr,
    /// The operators' listener.
    pub(super) ops: SocketAddr,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
        if self.is_judged && !thread::panicking() {
            judge_chain(&self.database, &self.chain, || self.proxy.raws(), &[]);
        }
    }
}

/// A directory with the first two keys of the chain, and the file of their password.
fn keys(site: &Site) -> (PathBuf, PathBuf) {
    let (directory, password) = (site.fresh_path("keys"), site.fresh_path("password"));
    fs::create_dir(&directory).expect("a directory");
    for (name, key) in ["one", "two"].iter().zip(KEYS) {
        write_key_file(&directory.join(name), key, PASSWORD);
    }
    write_private(&password, PASSWORD);
    (directory, password)
}

/// The command that starts a node. Time is short, and one block is final.
pub(super) fn command(site: &Site, chain: &Chain, name: &str) -> Command {
    let (directory, password) = keys(site);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["txm", "serve", "--dev", "--listen", "127.0.0.1:0"]);
    command.args(["--ops-listen", "127.0.0.1:0"]);
    let chain_id = CHAIN_ID.to_string();
    command.envs([
        ("UBSCORE__TXM__NODE_ID", name),
        ("UBSCORE__TXM__POSTGRES_URL", &site.url()),
        ("UBSCORE__TXM__CHAIN__CHAIN_ID", &chain_id),
        ("UBSCORE__TXM__CHAIN__RPC_URLS", chain.url()),
        ("UBSCORE__TXM__CHAIN__POLL_MS", "100"),
        ("UBSCORE__TXM__LEASE__DURATION_MS", "1000"),
        ("UBSCORE__TXM__LEASE__RENEW_INTERVAL_MS", "200"),
        ("UBSCORE__TXM__LEASE__SKEW_MS", "100"),
        ("UBSCORE__TXM__CONFIRMATIONS__REQUIRED", "1"),
        ("UBSCORE__TXM__CONFIRMATIONS__POLICY", "count"),
    ]);
    command.env("UBSCORE__DATA_DIR", &site.data_dir);
    command.env("UBSCORE__TXM__SIGNERS__KEYSTORE_DIR", directory);
    command.env("UBSCORE__TXM__SIGNERS__PASSWORD_FILE", password);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Node {
    /// A node that is ready.
    pub(super) fn start(
        site: &Site,
        chain: &Chain,
        name: &str,
        environment: &[(&str, &str)],
    ) -> Node {
        let mut command = command(site, chain, name);
        let proxy = ChainProxy::start(chain);
        command.env("UBSCORE__TXM__CHAIN__RPC_URLS", proxy.url());
        command.envs(environment.iter().copied());
        let mut process = command.spawn().expect("the binary");
        let mut line = String::new();
        let out = BufReader::new(process.stdout.take().expect("piped"));
        out.take_line(&mut line);
        let part = |key: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
            value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{key}: {line:?}"))
        };
        assert!(line.starts_with("ubscore ready txm="), "{line:?}");
        let (database, chain) = (site.url(), chain.rpc().clone());
        let (clients, ops) = (part("txm="), part("ops="));
        Node { process, proxy, chain, database, is_judged: true, clients, ops }
    }

    /// From here on the test itself falsifies rows, or uses the key: nothing is compared.
    pub(super) fn is_not_judged(&mut self) {
        self.is_judged = false;
    }

    /// Ends it by SIGKILL.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("its end");
    }

    /// Ends it by SIGTERM; returns its exit code.
    pub(super) fn terminate(mut self) -> Option<i32> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("our own child");
        self.process.wait().expect("its end").code()
    }

    /// Asks the clients' listener.
    pub(super) fn get(&self, token: &str, path: &str) -> Reply {
        send(self.clients, &Request::new(token, "GET", path)).expect("an answer")
    }

    /// Posts a body to the clients' listener.
    pub(super) fn post(&self, token: &str, path: &str, body: &Value) -> Reply {
        let request = Request { body: Some(body), ..Request::new(token, "POST", path) };
        send(self.clients, &request).expect("an answer")
    }

    /// Runs a command of an operator on this node: its exit code, stdout and stderr.
    pub(super) fn operate(&self, arguments: &[&str]) -> (i32, String, String) {
        let url = format!("http://{}", self.ops);
        said(&cli(&[arguments, &["--dev", "--ops", &url]].concat()))
    }
}

/// Reads one line, and lets the rest go.
trait TakeLine {
    fn take_line(self, line: &mut String);
}

impl<R: BufRead> TakeLine for R {
    fn take_line(mut self, line: &mut String) {
        self.read_line(line).expect("its output");
    }
}

/// A token with these claims beside its expiry.
pub(super) fn signed(mut claims: Value) -> String {
    claims["exp"] = json!(now_s() + 3_600);
    let key = EncodingKey::from_secret(DEVELOPMENT_SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token")
}

/// The token of a service that uses these signers.
pub(super) fn service(signers: &[Address], prefix: Option<&str>) -> String {
    let signers: Vec<String> = signers.iter().map(|signer| format!("{signer:#x}")).collect();
    signed(json!({
        "sub": "pay", "role": "service", "aud": "ubscore-txm", "signers": signers, "prefix": prefix,
    }))
}

/// The token of an operator.
pub(super) fn operator(user: u64, role: &str) -> String {
    signed(json!({"sub": user.to_string(), "role": role, "aud": "ubscore-txm"}))
}
