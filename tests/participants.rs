//! Participants of transactions over HTTP: the outcome of every kind of answer, the check of their
//! duties, and the example.

/// An order paid by the examples: a caller, a participant, and the service.
mod payment;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use domain::transfer::ReqId;
use serde_json::{Value, json};
use tempfile::TempDir;
use ubscore::clock::SystemClock;
use ubscore::config::Config;
use ubscore::config::participants::{Participant, ParticipantKind};
use ubscore::config::secret::Secret;
use ubscore::participant::{
    ANSWER_BYTES_MAX, ParticipantAction, ParticipantCall, ParticipantDoubt, ParticipantOutcome,
    Participants,
};

use crate::harness::{cli, read_request, said};

/// "an endpoint's secret, 32 bytes.." in base64.
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";
const NAME: &str = "red-envelope";
/// Long enough for any answer that comes.
const PATIENT_MS: u64 = 60_000;

/// A participant at `url`, as the service knows it.
fn participants(url: &str, kind: ParticipantKind, timeout_ms: u64) -> Participants {
    let mut config = Config::default();
    config.transactions.participant_timeout_ms = timeout_ms;
    let (url, secret) = (Some(Secret::new(url)), Some(Secret::new(SECRET)));
    let entry = Participant { url, secret, kind: Some(kind), secret_file: None };
    config.participants.insert(NAME.to_owned(), entry);
    Participants::new(&config, Arc::new(SystemClock::new())).expect("a configuration")
}

fn call(action: ParticipantAction, branch: &str) -> ParticipantCall {
    ParticipantCall {
        tx_id: "order:77".to_owned(),
        transaction_id: ReqId::new(77).expect("not zero"),
        branch_id: format!("{branch}:{NAME}:2"),
        action,
        round: 2,
        payload: json!({"pool": "spring", "count": 1}),
    }
}

fn ask(participants: &Participants, call: &ParticipantCall) -> ParticipantOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(participants.call(NAME, call))
}

/// Requests as received: head and body.
type Received = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A server that answers every request with the same bytes. If there is a last part, it is repeated
/// until the client is gone, one byte at a time.
fn server(answer: &[u8], forever: &'static [u8]) -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (answer, received) = (answer.to_vec(), Received::default());
    let requests = Arc::clone(&received);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, requests) = (answer.clone(), Arc::clone(&requests));
            thread::spawn(move || answer_one(stream.expect("a call"), &answer, forever, &requests));
        }
    });
    (url, received)
}

fn answer_one(mut stream: TcpStream, answer: &[u8], forever: &[u8], requests: &Received) {
    let Ok(request) = read_request(&stream) else { return };
    requests.lock().expect("no panic in a server").push(request);
    // The client may be gone already.
    if stream.write_all(answer).is_err() {
        return;
    }
    for byte in forever.iter().cycle() {
        if stream.write_all(&[*byte]).and_then(|()| stream.flush()).is_err() {
            return;
        }
        if forever.len() == 1 {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A whole answer with its length.
fn answered(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into()
}

const DONE: &str = r#"{"outcome":"done"}"#;
const REFUSED: &str = r#"{"outcome":"refused","code":"SOLD_OUT"}"#;

/// Goal: only a whole 200 with an outcome is a decision. Method: a real server answers in every
/// wrong way, to every action.
#[test]
fn only_a_whole_200_with_an_outcome_is_a_decision() {
    let longest = format!(
        "{DONE}{}",
        " ".repeat(usize::try_from(ANSWER_BYTES_MAX).expect("small") - DONE.len())
    );
    let unanswered = |outcome: &ParticipantOutcome| {
        matches!(outcome, ParticipantOutcome::Unknown { why: ParticipantDoubt::Unanswered(_) })
    };
    let unknown = |why| ParticipantOutcome::Unknown { why };
    for action in ParticipantAction::ALL {
        let outcome = |answer: &[u8]| {
            let (url, received) = server(answer, b"");
            let asked =
                ask(&participants(&url, ParticipantKind::Veto, PATIENT_MS), &call(action, "a"));
            assert_eq!(received.lock().expect("no panic").len(), 1, "asked once");
            asked
        };
        assert_eq!(outcome(&answered("200 OK", DONE)), ParticipantOutcome::Done);
        assert_eq!(outcome(&answered("200 OK", &longest)), ParticipantOutcome::Done);
        let refused = match action.may_be_refused() {
            true => ParticipantOutcome::Refused { code: "SOLD_OUT".to_owned() },
            false => unknown(ParticipantDoubt::MayNotRefuse),
        };
        assert_eq!(outcome(&answered("200 OK", REFUSED)), refused);
        for (body, why) in [
            ("", ParticipantDoubt::NotJson),
            ("<html>", ParticipantDoubt::NotJson),
            ("{}", ParticipantDoubt::NoOutcome),
            (r#"{"outcome":"done","outcome":"refused","code":"A"}"#, ParticipantDoubt::NoOutcome),
        ] {
            assert_eq!(outcome(&answered("200 OK", body)), unknown(why), "{body}");
        }
        for status in [201, 202, 204, 301, 302, 303, 307, 308, 400, 401, 404, 409, 429, 500, 503] {
            let elsewhere = format!("{status} So\r\nLocation: /elsewhere");
            let body = if status == 204 { "" } else { DONE };
            let outcome = outcome(&answered(&elsewhere, body));
            assert_eq!(outcome, unknown(ParticipantDoubt::Status(status)));
        }
        let cut = answered("200 OK\r\nX: y", DONE);
        let cut = &cut[..cut.len() - 1];
        for answer in
            [&b""[..], b"garbage\r\n\r\n", cut, &answered("200 OK", &format!("{longest} "))]
        {
            let outcome = outcome(answer);
            assert!(unanswered(&outcome), "{outcome:?}");
        }
    }
}

/// Goal: a call ends by its timeout and by its bound of bytes, also if bytes keep coming. Method: a
/// head and a body that come byte by byte without an end, and a body without an end.
#[test]
fn a_slow_or_endless_answer_is_cut_off() {
    let head = &b"HTTP/1.1 200 OK\r\nConnection: close\r\n"[..];
    let open = [head, b"\r\n{\"outcome\":\"done\","].concat();
    for (answer, forever, timeout_ms) in
        [(head, &b"x"[..], 300), (&open, b" ", 300), (&open, b"  ", PATIENT_MS)]
    {
        let (url, _) = server(answer, forever);
        let participants = participants(&url, ParticipantKind::Veto, timeout_ms);
        let outcome = ask(&participants, &call(ParticipantAction::Try, "a"));
        let ParticipantOutcome::Unknown { why: ParticipantDoubt::Unanswered(why) } = outcome else {
            panic!("{outcome:?}")
        };
        let too_long = format!("its answer is longer than {ANSWER_BYTES_MAX} bytes");
        assert_eq!(why == too_long, timeout_ms == PATIENT_MS, "{why}");
    }
}

#[test]
fn an_unreachable_or_unconfigured_participant_has_not_decided() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://user:hunter2@{}/", listener.local_addr().expect("an address"));
    drop(listener);
    let known = participants(&url, ParticipantKind::Last, PATIENT_MS);
    let call = call(ParticipantAction::Commit, "a");
    let outcome = ask(&known, &call);
    let ParticipantOutcome::Unknown { why: why @ ParticipantDoubt::Unanswered(_) } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(!why.to_string().contains("hunter2"), "{why}");
    assert_eq!(known.kind(NAME), Some(ParticipantKind::Last));
    assert_eq!(known.kind("other"), None);
    let none = Participants::new(&Config::default(), Arc::new(SystemClock::new())).expect("none");
    let unconfigured = ParticipantOutcome::Unknown { why: ParticipantDoubt::Unconfigured };
    assert_eq!(ask(&none, &call), unconfigured);
}

/// Goal: operators see calls by participant, action and outcome.
#[test]
fn calls_are_counted_by_outcome() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let (url, _) = server(&answered("200 OK", REFUSED), b"");
    let participants = participants(&url, ParticipantKind::Veto, PATIENT_MS);
    metrics::with_local_recorder(&recorder, || {
        for action in ParticipantAction::ALL {
            ask(&participants, &call(action, "a"));
        }
    });
    for (action, outcome) in
        [("try", "refused"), ("confirm", "unknown"), ("cancel", "unknown"), ("commit", "refused")]
    {
        let labels = format!("participant=\"{NAME}\",action=\"{action}\",outcome=\"{outcome}\"");
        let line = format!("ubscore_participant_requests_total{{{labels}}} 1\n");
        assert!(metrics.render().contains(&line), "{line} {}", metrics.render());
    }
}

/// Goal: a call holds everything that names it, and a receiver can check it. Method: the check of
/// Standard Webhooks' own library.
#[test]
fn a_call_is_signed_and_names_branch_action_and_round() {
    let (url, received) = server(&answered("200 OK", DONE), b"");
    let participants = participants(&url, ParticipantKind::Veto, PATIENT_MS);
    assert_eq!(ask(&participants, &call(ParticipantAction::Try, "a")), ParticipantOutcome::Done);
    let requests = received.lock().expect("no panic");
    let (head, body) = &requests[0];
    let mut headers = hyper::HeaderMap::new();
    for line in head.lines().filter(|line| line.to_ascii_lowercase().starts_with("webhook-")) {
        let (name, value) = line.split_once(": ").expect("a header");
        let name: hyper::header::HeaderName = name.parse().expect("a name");
        headers.insert(name, value.parse().expect("a value"));
    }
    assert_eq!(headers["webhook-id"], "a:red-envelope:2:try:2");
    let verifier = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    verifier.verify(body, &headers).expect("rightly signed");
    let body: Value = serde_json::from_slice(body).expect("JSON");
    let expected = json!({
        "tx_id": "order:77", "transaction_id": "0000000000000000000000002D",
        "branch_id": "a:red-envelope:2", "action": "try", "round": 2,
        "payload": {"pool": "spring", "count": 1},
    });
    assert_eq!(body, expected);
}

/// The example, with or without a planted fault, in a directory of its own.
struct Example {
    directory: TempDir,
    kind: &'static str,
    process: Option<(Child, String)>,
}

impl Example {
    fn new(kind: &'static str) -> Example {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("secret"), format!("{SECRET}\n")).expect("written");
        Example { directory, kind, process: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts it on a free port. The earlier process has ended.
    fn start(&mut self, fault: &str) {
        let root = env!("CARGO_MANIFEST_DIR");
        let mut command = Command::new("python3");
        command.arg(format!("{root}/tests/participants/faulty.py"));
        command.args([format!("{root}/examples/participant.py").as_str(), fault]);
        command.arg(self.path("envelopes.db")).arg("--secret-file").arg(self.path("secret"));
        command.args(["--kind", self.kind, "--listen", "127.0.0.1:0", "--pool", "spring=1000"]);
        let log = fs::File::create(self.path("log")).expect("a file");
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("python3");
        let mut url = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut url).expect("its first line");
        self.process = Some((child, url.trim().to_owned()));
        assert!(url.starts_with("http://"), "{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("its log")
    }

    fn url(&self) -> &str {
        &self.process.as_ref().expect("started").1
    }

    fn ask(&self, action: ParticipantAction, branch: &str) -> ParticipantOutcome {
        let kind = match self.kind {
            "last" => ParticipantKind::Last,
            _ => ParticipantKind::Veto,
        };
        ask(&participants(self.url(), kind, PATIENT_MS), &call(action, branch))
    }

    /// Free, locked and used envelopes.
    fn pool(&self) -> String {
        let script = "import sqlite3, sys; \
             print(*sqlite3.connect(sys.argv[1]).execute('SELECT free, locked, used FROM pools').fetchone())";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(self.path("envelopes.db"));
        let (code, out, err) = said(&python.output().expect("python3"));
        assert_eq!(code, 0, "{err}");
        out.trim().to_owned()
    }

    /// Kills it, if it runs. Returns its URL.
    fn stop(&mut self) -> Option<String> {
        let (mut child, url) = self.process.take()?;
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        Some(url)
    }

    /// Waits for its end by SIGKILL.
    fn died(&mut self) {
        let (mut child, _) = self.process.take().expect("started");
        let status = child.wait().expect("our own child");
        assert_eq!(status.signal(), Some(9), "{}", self.log());
    }

    /// Runs `ubscore participant check` on it: exit code, stdout, stderr.
    fn check(&self, arguments: &[&str]) -> (i32, String, String) {
        check_at(self, self.url(), arguments)
    }
}

fn check_at(example: &Example, url: &str, arguments: &[&str]) -> (i32, String, String) {
    let (config, secret) = (example.path("ubscore.toml"), example.path("secret"));
    let kind = example.kind;
    let text = format!(
        "[participants.{NAME}]\nurl = {url:?}\nsecret_file = {secret:?}\nkind = {kind:?}\n"
    );
    fs::write(&config, text).expect("written");
    let config = config.to_str().expect("UTF-8");
    let check = ["participant", "check", NAME, "--dev", "--config", config];
    said(&cli(&[&check[..], arguments].concat()))
}

impl Drop for Example {
    fn drop(&mut self) {
        self.stop();
    }
}

const FITTING: &str = r#"{"pool":"spring","count":1}"#;
const SOLD_OUT: &str = r#"{"pool":"spring","count":1001}"#;

/// Goal: the check passes a participant that keeps its duties, and names each broken one with the
/// change it needs. Method: the example of each kind, as it is, and with one planted fault.
#[test]
fn gtx_019_the_check_passes_the_example_and_names_each_planted_fault() {
    let veto = [
        "confirm",
        "cancel-repeats",
        "cancel-unknown",
        "confirm-repeats",
        "late-try",
        "payload",
        "rounds",
        "signature",
        "try-repeats",
    ];
    let last = ["commit-repeats", "late-commit", "never-undone", "refusal-repeats", "rounds"];
    for (kind, faults) in [("veto", &veto[..]), ("last", &last)] {
        let arguments = ["--payload", FITTING, "--refused-payload", SOLD_OUT, "--format", "json"];
        let mut sound = Example::new(kind);
        sound.start("none");
        let (code, out, err) = sound.check(&arguments);
        assert_eq!(code, 0, "{kind}: {out}{err}{}", sound.log());
        let (code, text, _) = sound.check(&arguments[..4]);
        let duties = out.lines().count();
        assert!(code == 0 && text.ends_with(&format!("{duties} ok, 0 bad\n")), "{text}");
        for fault in faults {
            let mut example = Example::new(kind);
            example.start(fault);
            let (code, out, err) = example.check(&arguments);
            assert_eq!(code, 1, "{fault}: {out}{err}{}", example.log());
            let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            let bad: Vec<Value> = lines.filter(|line| line["verdict"] == "bad").collect();
            let named = bad.iter().find(|line| line["duty"] == *fault);
            let named = named.unwrap_or_else(|| panic!("{fault} is not named: {out}"));
            assert!(named["found"].is_string() && named["change"].is_string(), "{named}");
        }
    }
}

#[test]
fn a_check_that_cannot_ask_exits_with_2() {
    let mut example = Example::new("veto");
    example.start("none");
    let (code, _, err) = example.check(&["--payload", "{"]);
    assert_eq!(code, 2, "{err}");
    let (code, out, _) = example.check(&[]);
    assert!(code == 1 && out.contains("give a fitting --payload"), "{out}");
    let url = example.stop().expect("started");
    let (code, _, err) = check_at(&example, &url, &["--payload", FITTING]);
    assert!(code == 2 && err.contains("cannot be asked"), "{code} {err}");
}

/// Goal: a participant that dies by SIGKILL has decided once, with its effect, or not at all.
/// Method: the example kills itself behind the effect of each action, before and after its local
/// commit; then it is asked again.
#[test]
fn the_example_killed_in_the_middle_decides_once() {
    use ParticipantAction::{Cancel, Commit, Confirm, Try};
    for (kind, earlier, action, pool) in [
        ("veto", None, Try, "999 1 0"),
        ("veto", Some(Try), Confirm, "999 0 1"),
        ("veto", Some(Try), Cancel, "1000 0 0"),
        ("last", None, Commit, "999 0 1"),
        ("last", None, Cancel, "1000 0 0"),
    ] {
        for death in ["dies-before-commit", "dies-before-answer"] {
            let mut example = Example::new(kind);
            example.start("none");
            if let Some(action) = earlier {
                assert_eq!(example.ask(action, "a"), ParticipantOutcome::Done);
            }
            let before = example.pool();
            example.stop();
            example.start(death);
            let outcome = example.ask(action, "a");
            assert!(matches!(outcome, ParticipantOutcome::Unknown { .. }), "{outcome:?}");
            example.died();
            let expected = if death == "dies-before-commit" { &before } else { pool };
            assert_eq!(example.pool(), expected, "{death} {action:?}");
            example.start("none");
            for _ in 0..2 {
                assert_eq!(example.ask(action, "a"), ParticipantOutcome::Done, "{action:?}");
                assert_eq!(example.pool(), pool, "{death} {action:?}");
            }
        }
    }
}
