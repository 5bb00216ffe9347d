//! The real binary: started, queried, signalled, and its output.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ubscore::http::auth::Role;

use super::{
    ADMIN, Balance, Follower, PATIENCE, POLL, Reply, Request, Site, Way, eventually, external,
    send, text, token, unique,
};

/// Sends a request that counts once under any number of repeats, and repeats it like a client while
/// PostgreSQL is too slow to take it. With short lock timeouts, a slow disk or a busy machine
/// causes that.
fn taken(ask: impl Fn() -> Reply) -> Reply {
    eventually("an answer other than 503", || Some(ask()).filter(|reply| reply.status != 503))
}

/// Waits for the last output of a process that has ended.
const LAST_LOOKS: u32 = 1_000;

/// The end of a start with too slow a store.
const SLOW: [&str; 5] = [
    "PostgreSQL did not answer",
    "no connection to PostgreSQL: Timeout",
    "due to statement timeout",
    "due to lock timeout",
    "UBSCore did not answer",
];

/// Runs a command that must end by itself; returns its exit code and stderr.
pub(crate) fn refused(mut command: Command) -> (i32, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let said = drain(child.stderr.take().expect("piped"));
    let status = wait_for_exit(&mut child, &said);
    let said = said.lock().expect("no panic in the reader").clone();
    (status.code().unwrap_or_else(|| panic!("{status}: {said}")), said)
}

/// The last lines of a server's output.
fn tail(said: &str) -> String {
    const LINES: usize = 25;
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Reads a pipe to its end on a thread of its own.
fn drain(mut pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let written = Arc::clone(&text);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let part = String::from_utf8_lossy(&buffer[..count]);
            written.lock().expect("no panic in a reader").push_str(&part);
        }
    });
    text
}

/// Waits for its end, and for its last output if it was not killed meanwhile.
fn wait_for_exit(child: &mut Child, said: &Arc<Mutex<String>>) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            // The reader may be late. A leftover PostgreSQL may hold the pipe open for ever.
            let looks = if status.code().is_some() { LAST_LOOKS } else { 1 };
            for _ in 0..looks {
                if Arc::strong_count(said) == 1 {
                    break;
                }
                thread::sleep(POLL);
            }
            return status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().expect("our own child");
            let said = said.lock().expect("no panic in a reader");
            panic!("it did not end within {PATIENCE:?}; it said:\n{said}");
        }
        thread::sleep(POLL);
    }
}

/// Runs `ubscore repair` on a site.
pub(crate) fn repair(site: &Site, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.arg("repair").args(arguments).args(["--dev", "--postgres", &site.url()]);
    command.arg("--data-dir").arg(&site.data_dir);
    command.envs(site.verify().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let std::process::Output { status, stdout, stderr } = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Gives up a sound log from a record on.
pub(crate) fn cut_log(site: &Site, from: u64) {
    let (url, from) = (site.url(), from.to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["wal", "repair"]).arg(&site.data_dir).args(["--dev", "--postgres", &url]);
    command.args(["--accept-loss-from", &from, "--reason", "a test", "--although-sound"]);
    command.envs(site.verify().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (code, out, err) = said(&command.output().expect("the binary"));
    assert_eq!(code, 0, "{out}{err}");
}

/// Runs `ubscore` like an operator.
pub(crate) fn cli(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_ubscore")).args(arguments).output().expect("the binary")
}

/// Its exit code, stdout and stderr.
pub(crate) fn said(output: &std::process::Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code().expect("an exit code"), text(&output.stdout), text(&output.stderr))
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    said: Arc<Mutex<String>>,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
    /// The listener of payment channels, if there are recharges.
    pub(crate) callbacks: Option<SocketAddr>,
    /// The simulator of payment channels, if it is a child of the server.
    pub(crate) simulator: Option<SocketAddr>,
    /// The test chain and its node, if they are children of the server.
    pub(crate) chain: Option<[SocketAddr; 2]>,
}

/// The addresses in a server's first lines.
struct Addresses {
    http: SocketAddr,
    ops: SocketAddr,
    callbacks: Option<SocketAddr>,
    simulator: Option<SocketAddr>,
    chain: Option<[SocketAddr; 2]>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server, process {}, said last:\n{}", self.pid(), tail(&self.said()));
        }
        // It may have ended before, which is fine.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// Runs `command` and waits for its ready line. It is started again, as by systemd, while the
    /// stores are too slow for its start.
    pub(crate) fn start(mut command: Command) -> Server {
        eventually("a start", || match Server::launch(&mut command, Stdio::piped()) {
            Ok(server) => Some(server),
            Err((status, said)) => {
                let slow = SLOW.iter().any(|words| said.contains(words));
                assert!(
                    slow && status.code() == Some(1),
                    "the server ended before it was ready, {status}; it said:\n{said}"
                );
                None
            }
        })
    }

    /// Runs `command` until it is ready or has ended; `Err`: its exit status and stderr.
    pub(crate) fn try_start(mut command: Command) -> Result<Server, (ExitStatus, String)> {
        Server::launch(&mut command, Stdio::piped())
    }

    /// Runs `command` with a closed stderr pipe.
    pub(crate) fn start_unheard(mut command: Command) -> Server {
        let (nobody, stderr) = io::pipe().expect("a pipe");
        drop(nobody);
        Server::launch(&mut command, stderr.into()).expect("it starts")
    }

    /// Runs `command` with an open stderr that no thread reads: the other end is returned.
    pub(crate) fn start_unread(mut command: Command) -> (Server, io::PipeReader) {
        let (unread, stderr) = io::pipe().expect("a pipe");
        (Server::launch(&mut command, stderr.into()).expect("it starts"), unread)
    }

    fn launch(command: &mut Command, stderr: Stdio) -> Result<Server, (ExitStatus, String)> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary");
        let said = child.stderr.take().map_or_else(Arc::default, drain);
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || {
            let (mut simulator, mut chain) = (None, None);
            for line in lines.map_while(Result::ok) {
                let of_simulator = line.strip_prefix("ubscore channel-sim ready http=");
                simulator = simulator.or(of_simulator.and_then(|address| address.parse().ok()));
                chain = chain.or_else(|| parse_chain(&line));
                if let Some(addresses) = parse_ready(&line, simulator) {
                    let addresses = Addresses { chain, ..addresses };
                    // The test may have given up, and then no thread waits.
                    sender.send(addresses).ok();
                }
            }
        });
        match ready.recv_timeout(PATIENCE) {
            Ok(Addresses { http, ops, callbacks, simulator, chain }) => {
                Ok(Server { child, said, http, ops, callbacks, simulator, chain })
            }
            Err(_) => {
                let status = wait_for_exit(&mut child, &said);
                let said = said.lock().expect("no panic in a reader").clone();
                Err((status, said))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for this text on stderr: a line may be read after the answer that followed it.
    pub(crate) fn says(&self, words: &str) {
        eventually(words, || self.said().contains(words).then_some(()));
    }

    /// Its stderr so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic in a reader").clone()
    }

    /// A command of an operator: its exit code and its words.
    pub(crate) fn operate(&self, words: &[&str]) -> (i32, String) {
        let ops = format!("http://{}", self.ops);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(words).args(["--dev", "--ops", &ops, "--as", &ADMIN.to_string()]);
        let (code, out, err) = said(&command.output().expect("the binary"));
        (code, format!("{out}{err}"))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("our own child, not waited for yet");
    }

    /// SIGSTOP, and waits until no thread of it runs any more.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let stands = |task: io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.expect("an entry").path().join("stat"));
            // A thread that has ended meanwhile does not run either.
            stat.map_or(true, |stat| {
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
            })
        };
        eventually("all threads to stand still", || {
            fs::read_dir(&tasks).expect("our own child").all(stands).then_some(())
        });
    }

    /// Whether it has ended.
    #[cfg(feature = "crash")]
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Sends a signal, unless it has ended.
    #[cfg(feature = "crash")]
    pub(crate) fn signal_if_alive(&mut self, signal: Signal) {
        if !self.has_ended() {
            self.signal(signal);
        }
    }

    /// Waits for its end; returns its status and stderr.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = wait_for_exit(&mut self.child, &self.said);
        (status, self.said())
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        let (status, said) = self.wait();
        assert_eq!(status.signal(), Some(9), "{said}");
    }

    /// SIGTERM, and waits for the exit in order.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let (status, said) = self.wait();
        assert_eq!(status.code(), Some(0), "{said}");
    }

    /// Sends a request to the public listener as a user.
    pub(crate) fn ask(&self, user: u64, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.try_ask(user, method, path, body).expect("an answer")
    }

    /// The same, if the server may die during it.
    pub(crate) fn try_ask(
        &self,
        user: u64,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Reply> {
        send(self.http, &Request { body, ..Request::new(&token(user, None), method, path) })
    }

    /// GET as a user.
    pub(crate) fn get(&self, user: u64, path: &str) -> Reply {
        self.ask(user, "GET", path, None)
    }

    /// Every metric, as Prometheus reads it.
    pub(crate) fn metrics(&self) -> String {
        let reply = send(self.ops, &Request::new(&token(ADMIN, None), "GET", "/metrics"));
        reply.expect("an answer").body
    }

    /// A request of the operator's.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Reply {
        let token = token(ADMIN, Some(Role::Admin));
        let request = Request { body: Some(body), ..Request::new(&token, method, path) };
        send(self.ops, &request).expect("an answer")
    }

    /// An operator resumes a halted service, and repeats it while PostgreSQL is too slow to record
    /// it.
    pub(crate) fn resume(&self, reason: &str) -> Reply {
        let body = json!({ "reason": reason });
        eventually("a resume", || {
            let reply = self.admin("POST", "/admin/v1/resume", &body);
            let slow = reply.status == 503 && reply.json()["code"] == json!("SYSTEM_ERROR");
            (!slow).then_some(reply)
        })
    }

    /// Whether the audit has named this transfer.
    pub(crate) fn has_named(&self, reply: &Reply) -> bool {
        let named =
            |line: &str| line.contains("conservation_violated") && line.contains(&reply.req_id());
        self.said().lines().any(named)
    }

    /// GET on the operator's listener, as an operator.
    pub(crate) fn admin_get(&self, path: &str) -> Reply {
        let token = token(ADMIN, Some(Role::Admin));
        send(self.ops, &Request::new(&token, "GET", path)).expect("an answer")
    }

    /// A stream of a user's events, behind an event's id.
    pub(crate) fn follow(&self, user: u64, after: Option<&str>) -> Follower {
        Follower::open(self.http, &token(user, None), after)
    }

    /// The number of a metric's line, 0 without one.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let value = |line: &str| line.strip_prefix(series)?.trim().parse().ok();
        self.metrics().lines().find_map(value).unwrap_or(0)
    }

    /// The status of `/readyz`.
    pub(crate) fn ready(&self) -> u16 {
        self.admin_get("/readyz").status
    }

    /// Posts a transfer of USDT, without a cid.
    pub(crate) fn transfer(&self, user: u64, way: Way, amount: &str) -> Reply {
        self.post(user, &way.body("USDT", amount))
    }

    /// Posts a transfer of USDT that must not be refused; if the server waits only briefly, it may
    /// still be in progress.
    pub(crate) fn transfer_accepted(&self, user: u64, way: Way, amount: &str) {
        self.post_taken(user, &way.body_with_cid("USDT", amount, &format!("some-{}", unique())));
    }

    /// Posts a transfer of USDT that must succeed, in the answer or after it; returns its req_id.
    pub(crate) fn transfer_committed(&self, user: u64, way: Way, amount: &str) -> String {
        let body = way.body_with_cid("USDT", amount, &format!("some-{}", unique()));
        let reply = self.post_taken(user, &body);
        let now = eventually("the transfer's end", || {
            let now = self.look(user, &reply.req_id());
            (now["final"] == json!(true)).then_some(now)
        });
        assert_eq!(now["state"], json!("COMMITTED"), "{now}");
        reply.req_id()
    }

    /// Posts a body as a transfer.
    pub(crate) fn post(&self, user: u64, body: &Value) -> Reply {
        self.ask(user, "POST", "/api/v1/internal_transfer", Some(body))
    }

    /// Posts a transfer with a cid that must not be refused.
    pub(crate) fn post_taken(&self, user: u64, body: &Value) -> Reply {
        assert!(body["cid"].is_string(), "{body}");
        let reply = taken(|| self.post(user, body));
        assert!([200, 202].contains(&reply.status), "{reply:?}");
        reply
    }

    /// The same with a blocked one, so that it is in progress at its answer.
    pub(crate) fn post_pending(&self, user: u64, body: &Value) -> Reply {
        let reply = self.post_taken(user, body);
        assert_eq!(reply.status, 202, "{reply:?}");
        reply
    }

    /// Posts a transfer with a cid that the test blocks, without reading its answer; returns its
    /// req_id once it is accepted. So the server may wait for long, and an operator's request as
    /// well. Behind a blocked transfer of the same user none is accepted.
    pub(crate) fn post_held(&self, site: &Site, user: u64, body: &Value) -> String {
        let find = format!(
            "SELECT req_id FROM transfers WHERE user_id = {user} AND cid = '{}'",
            text(&body["cid"])
        );
        let (http, token, body) = (self.http, token(user, None), body.clone());
        thread::spawn(move || {
            let path = "/api/v1/internal_transfer";
            let request = Request { body: Some(&body), ..Request::new(&token, "POST", path) };
            // The server may die during it.
            while send(http, &request).is_ok_and(|reply| reply.status == 503) {}
        });
        let session = site.session();
        eventually("the accept", || session.sql(&find).first().map(|row| row[0].clone()))
    }

    /// The same with a transfer of USDT.
    pub(crate) fn transfer_held(&self, site: &Site, user: u64, way: Way, amount: &str) -> String {
        self.post_held(
            site,
            user,
            &way.body_with_cid("USDT", amount, &format!("held-{}", unique())),
        )
    }

    /// Posts a transfer with a cid until its answer is final, a success or not.
    pub(crate) fn post_ended(&self, user: u64, body: &Value) -> Reply {
        assert!(body["cid"].is_string(), "{body}");
        eventually("the transfer's end", || {
            Some(self.post(user, body)).filter(|reply| ![202, 503].contains(&reply.status))
        })
    }

    /// The same with a transfer of USDT.
    pub(crate) fn transfer_ended(&self, user: u64, way: Way, amount: &str) -> Reply {
        self.post_ended(user, &way.body_with_cid("USDT", amount, &format!("ended-{}", unique())))
    }

    /// GET of one transfer by its owner.
    pub(crate) fn look(&self, user: u64, req_id: &str) -> Value {
        let reply = self.get(user, &format!("/api/v1/internal_transfer/{req_id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Every balance of a user, by symbol.
    pub(crate) fn balances(&self, user: u64) -> BTreeMap<String, Balance> {
        let reply = self.get(user, "/api/v1/balances");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.balances()
    }

    /// The USDT balance of a user.
    pub(crate) fn usdt(&self, user: u64) -> Balance {
        self.balances(user)["USDT"]
    }

    /// Gives a user money from outside.
    pub(crate) fn deposit(&self, user: u64, asset: &str, amount: &str) {
        let idem_key = format!("deposit-{}", unique());
        let body = external(user, asset, amount, &idem_key);
        let reply = taken(|| self.admin("POST", "/admin/v1/deposits", &body));
        assert_eq!((reply.status, &reply.json()["outcome"]), (200, &json!("SUCCESS")), "{reply:?}");
    }

    /// Sets an account's status.
    pub(crate) fn set_status(&self, user: u64, account: &str, status: &str) {
        let path = format!("/admin/v1/accounts/{user}/{account}/status");
        let body = json!({"status": status, "reason": "a test", "create": true});
        let reply = taken(|| self.admin("PUT", &path, &body));
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Changes an asset.
    pub(crate) fn change_asset(&self, symbol: &str, mut change: Value) {
        change["reason"] = json!("a test");
        let reply = self.admin("PUT", &format!("/admin/v1/assets/{symbol}"), &change);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn parse_chain(line: &str) -> Option<[SocketAddr; 2]> {
    let (chain, rest) = line.strip_prefix("ubscore chain ready rpc=")?.split_once(" txm=")?;
    Some([chain.parse().ok()?, rest.split(' ').next()?.parse().ok()?])
}

fn parse_ready(line: &str, simulator: Option<SocketAddr>) -> Option<Addresses> {
    let addresses = line.strip_prefix("ubscore ready http=")?;
    let (http, rest) = addresses.split_once(" ops=")?;
    let (ops, callbacks) = match rest.split_once(" callbacks=") {
        Some((ops, callbacks)) => {
            // The need to recover recharges may follow.
            let callbacks = callbacks.split(' ').next()?;
            (ops, Some(callbacks.parse().ok()?))
        }
        None => (rest, None),
    };
    let (http, ops) = (http.parse().ok()?, ops.parse().ok()?);
    Some(Addresses { http, ops, callbacks, simulator, chain: None })
}
