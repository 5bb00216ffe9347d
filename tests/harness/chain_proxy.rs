//! An endpoint of a chain before a [`Chain`]: stricter than the node where that is too kind, it
//! records each raw transaction that a client lets out, and it lies on demand ([`Lie`]).
//!
//! HTTP/1.1 with connections that stay, single calls and batches.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use alloy_primitives::{B256, hex, keccak256};
use serde_json::{Value, json};

use super::chain::{Chain, Rpc, SLOTS_IN_AN_EPOCH, hex_of, number};
use super::chain_lie::{ERROR_OF_SENDS, Lie, refusal, swap_ids};
use super::chain_pool::objection;
use super::read_request;

/// The method that lets a transaction out.
pub(crate) const SEND: &str = "eth_sendRawTransaction";
/// Stands for every method in a rule.
pub(crate) const ANY: &str = "*";
/// The path that [`Lie::Redirect`] leads to.
const ELSEWHERE: &str = "/elsewhere";
/// The bytes of [`Lie::LongAnswer`] beside the answer.
const LONG_ANSWER_BYTES: usize = 9 << 20;

/// A raw transaction as it left a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) hash: B256,
    pub(crate) raw: Vec<u8>,
}

/// A lie that waits for its call.
struct Rule {
    method: String,
    /// The requests that it still answers; `None`: all.
    left: Option<usize>,
    lie: Lie,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    sent: Vec<Sent>,
    calls: BTreeMap<String, usize>,
    /// The height of an old head that is served.
    height_max: Option<u64>,
    refuses: bool,
    /// The open connections, by a number.
    ends: BTreeMap<u64, TcpStream>,
    connections: u64,
    /// Requests that wait for a release, and the number of releases so far.
    waiting: usize,
    releases: u64,
    redirects: usize,
}

struct Inner {
    address: SocketAddr,
    node: Mutex<Rpc>,
    /// One send at a time: the rules of the pool must see each earlier one.
    gate: Mutex<()>,
    state: Mutex<State>,
    released: Condvar,
}

/// An endpoint before a node. It is honest until [`ChainProxy::lie`]. A rule names a method or
/// [`ANY`]; the first rule that fits any call of a request applies to that request.
pub(crate) struct ChainProxy(Arc<Inner>);

impl Drop for ChainProxy {
    fn drop(&mut self) {
        self.refuse();
        self.release();
    }
}

impl ChainProxy {
    /// An endpoint before a chain, on a port of its own.
    pub(crate) fn start(chain: &Chain) -> ChainProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let inner = Arc::new(Inner {
            address,
            node: Mutex::new(chain.rpc().clone()),
            gate: Mutex::default(),
            state: Mutex::default(),
            released: Condvar::new(),
        });
        let behind = Arc::clone(&inner);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(connection) = behind.admit(&stream) else { continue };
                let inner = Arc::clone(&behind);
                thread::spawn(move || {
                    // A client may go at any moment.
                    drop(inner.serve(&stream));
                    inner.state().ends.remove(&connection);
                });
            }
        });
        ChainProxy(inner)
    }

    /// Its `http://` URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Leads to another node from now on: an endpoint that changes its mind.
    pub(crate) fn leads_to(&self, chain: &Chain) {
        *self.0.node.lock().expect("no panic") = chain.rpc().clone();
    }

    /// Lies to each request with this method from now on.
    pub(crate) fn lie(&self, method: &str, lie: Lie) {
        self.add(method, None, lie);
    }

    /// Lies to the next `times` requests with this method.
    pub(crate) fn lie_times(&self, times: usize, method: &str, lie: Lie) {
        self.add(method, Some(times), lie);
    }

    /// Answers each send with this text, and delivers none.
    pub(crate) fn say(&self, text: &str) {
        self.lie(SEND, Lie::say(text));
    }

    fn add(&self, method: &str, left: Option<usize>, lie: Lie) {
        self.0.state().rules.push(Rule { method: method.to_owned(), left, lie });
    }

    /// Serves the chain as it was when its head had this height.
    pub(crate) fn serve_old_head(&self, height: u64) {
        self.0.state().height_max = Some(height);
    }

    /// Ends every lie, serves the present head, and releases all that waits.
    pub(crate) fn honest(&self) {
        let mut state = self.0.state();
        state.rules.clear();
        state.height_max = None;
        drop(state);
        self.release();
    }

    /// Lets the requests go on that wait by [`Lie::Delay`] or [`Lie::DelayAnswer`] at this moment.
    pub(crate) fn release(&self) {
        self.0.state().releases += 1;
        self.0.released.notify_all();
    }

    /// The requests that wait for a release.
    pub(crate) fn waiting(&self) -> usize {
        self.0.state().waiting
    }

    /// Closes every connection, and each new one, until [`ChainProxy::come_back`].
    pub(crate) fn refuse(&self) {
        let mut state = self.0.state();
        state.refuses = true;
        for end in std::mem::take(&mut state.ends).values() {
            // It may be closed already.
            end.shutdown(Shutdown::Both).ok();
        }
    }

    /// Takes connections again.
    pub(crate) fn come_back(&self) {
        self.0.state().refuses = false;
    }

    /// Each raw transaction that a client has ever sent, in order, with repetitions, also if the
    /// node did not get it.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.0.state().sent.clone()
    }

    /// The bytes of [`ChainProxy::sent`].
    pub(crate) fn raws(&self) -> Vec<Vec<u8>> {
        self.sent().into_iter().map(|sent| sent.raw).collect()
    }

    /// The calls of a method so far; each of a batch counts.
    pub(crate) fn calls(&self, method: &str) -> usize {
        self.0.state().calls.get(method).copied().unwrap_or(0)
    }

    /// The requests that followed a redirect.
    pub(crate) fn redirects_followed(&self) -> usize {
        self.0.state().redirects
    }
}

/// The part of an answer that is sent: headers and body, and the bytes of both that reach the
/// client.
struct Page {
    bytes: Vec<u8>,
    /// Closes the connection behind it.
    closes: bool,
}

fn page(status: u16, headers: &str, body: &[u8]) -> Page {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} So\r\n{headers}Content-Length: {length}\r\n\r\n");
    Page { bytes: [head.as_bytes(), body].concat(), closes: false }
}

fn json_page(body: &[u8]) -> Page {
    page(200, "Content-Type: application/json\r\n", body)
}

/// A request's calls, in order.
struct Body {
    calls: Vec<Value>,
    is_batch: bool,
}

fn body_of(body: &[u8]) -> Option<Body> {
    match serde_json::from_slice(body).ok()? {
        Value::Array(calls) => Some(Body { calls, is_batch: true }),
        call @ Value::Object(_) => Some(Body { calls: vec![call], is_batch: false }),
        _ => None,
    }
}

fn method_of(call: &Value) -> &str {
    call["method"].as_str().unwrap_or("")
}

fn fits(method: &str, call: &Value) -> bool {
    method == ANY || method == method_of(call)
}

/// The bytes of a send.
fn raw_of(call: &Value) -> Option<Vec<u8>> {
    hex::decode(call["params"][0].as_str().filter(|_| method_of(call) == SEND)?).ok()
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in a proxy")
    }

    fn node(&self) -> Rpc {
        self.node.lock().expect("no panic in a proxy").clone()
    }

    /// Keeps a handle of a new connection: its number. `None`: it is closed.
    fn admit(&self, stream: &TcpStream) -> Option<u64> {
        let mut state = self.state();
        if state.refuses {
            stream.shutdown(Shutdown::Both).ok();
            return None;
        }
        state.connections += 1;
        let connection = state.connections;
        state.ends.insert(connection, stream.try_clone().expect("a handle"));
        Some(connection)
    }

    /// The requests of one connection, until either end closes it.
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let (head, body) = read_request(stream)?;
            let asks_to_close = head.to_ascii_lowercase().contains("connection: close");
            let answer = self.answer(&head, &body);
            let mut client = stream;
            if let Some(page) = &answer {
                client.write_all(&page.bytes)?;
            }
            if asks_to_close || answer.is_none_or(|page| page.closes) {
                return stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// `None`: the connection is closed instead.
    fn answer(&self, head: &str, raw_body: &[u8]) -> Option<Page> {
        if head.lines().next().is_some_and(|line| line.contains(ELSEWHERE)) {
            self.state().redirects += 1;
        }
        let Some(body) = body_of(raw_body) else {
            let (status, answer) = self.node().post(raw_body).ok()?;
            return Some(page(status, "", &answer));
        };
        let (rule, height_max) = self.take(&body);
        let sends = body.calls.iter().any(|call| method_of(call) == SEND);
        let Some((method, lie)) = rule else {
            if !sends && height_max.is_none() {
                let (status, answer) = self.node().post(raw_body).ok()?;
                return Some(page(status, "Content-Type: application/json\r\n", &answer));
            }
            let answers = self.deliver_all(&body, height_max, 1)?;
            return Some(json_page(&written(&body, answers)));
        };
        if let Some(without) = self.undelivered(&lie, &body, &method, height_max) {
            return without;
        }
        if matches!(lie, Lie::Delay) {
            self.wait();
        }
        let times = if matches!(lie, Lie::Double) { 2 } else { 1 };
        let answers = self.deliver_all(&body, height_max, times)?;
        if matches!(lie, Lie::DelayAnswer) {
            self.wait();
        }
        told(&lie, &body, &method, answers)
    }

    /// Records a request; the lie that it gets, and the height of the served head.
    fn take(&self, body: &Body) -> (Option<(String, Lie)>, Option<u64>) {
        let mut state = self.state();
        for call in &body.calls {
            *state.calls.entry(method_of(call).to_owned()).or_default() += 1;
            if let Some(raw) = raw_of(call) {
                state.sent.push(Sent { hash: keccak256(&raw), raw });
            }
        }
        let rules = &mut state.rules;
        let place = rules.iter().position(|rule| {
            rule.left != Some(0) && body.calls.iter().any(|call| fits(&rule.method, call))
        });
        let rule = place.map(|place| {
            let rule = &mut rules[place];
            rule.left = rule.left.map(|left| left - 1);
            (rule.method.clone(), rule.lie.clone())
        });
        (rule, state.height_max)
    }

    /// The answer of a lie that keeps the request from the node; `None`: it is delivered.
    fn undelivered(
        &self,
        lie: &Lie,
        body: &Body,
        method: &str,
        height_max: Option<u64>,
    ) -> Option<Option<Page>> {
        let answer = match lie {
            Lie::LoseRequest => return Some(None),
            Lie::Status(status) => page(*status, "Content-Type: text/plain\r\n", b"not now"),
            Lie::Html => page(200, "Content-Type: text/html\r\n", b"<html>A gateway.</html>"),
            Lie::Redirect => {
                let location = format!("Location: http://{}{ELSEWHERE}\r\n", self.address);
                page(307, &location, b"")
            }
            Lie::Say { code, message } => {
                // The other calls of the batch get their true answers.
                let answer = |call: &Value| {
                    let refused = || Some(refusal(&call["id"], *code, message));
                    if fits(method, call) { refused() } else { self.deliver(call, height_max) }
                };
                let answers: Option<Vec<Value>> = body.calls.iter().map(answer).collect();
                return Some(answers.map(|answers| json_page(&written(body, answers))));
            }
            _ => return None,
        };
        Some(Some(answer))
    }

    /// The node's answers to all calls, each delivered `times` times; the first answer counts.
    fn deliver_all(
        &self,
        body: &Body,
        height_max: Option<u64>,
        times: usize,
    ) -> Option<Vec<Value>> {
        let answer = |call: &Value| {
            let answer = self.deliver(call, height_max)?;
            for _ in 1..times {
                self.deliver(call, height_max)?;
            }
            Some(answer)
        };
        body.calls.iter().map(answer).collect()
    }

    /// The node's answer to one call, or a refusal by the rules of the pool. `None`: no node.
    fn deliver(&self, call: &Value, height_max: Option<u64>) -> Option<Value> {
        let node = self.node();
        if let Some(raw) = raw_of(call) {
            let _one_at_a_time = self.gate.lock().expect("no panic in a proxy");
            let hash = keccak256(&raw).to_string();
            if let Some(text) = objection(&node, &raw, &hash).ok()? {
                return Some(refusal(&call["id"], ERROR_OF_SENDS, text));
            }
            return forward(&node, call);
        }
        match height_max {
            None => forward(&node, call),
            Some(height) => {
                let mut answer = forward(&node, &aged(call, height))?;
                if let Some(result) = answer.get_mut("result") {
                    age(method_of(call), result, height);
                }
                Some(answer)
            }
        }
    }

    fn wait(&self) {
        let mut state = self.state();
        let releases = state.releases;
        state.waiting += 1;
        while state.releases == releases {
            state = self.released.wait(state).expect("no panic in a proxy");
        }
        state.waiting -= 1;
    }
}

fn forward(node: &Rpc, call: &Value) -> Option<Value> {
    let (_, answer) = node.post(call.to_string().as_bytes()).ok()?;
    serde_json::from_slice(&answer).ok()
}

/// Answers as one body: an array for a batch.
fn written(body: &Body, mut answers: Vec<Value>) -> Vec<u8> {
    let whole = if body.is_batch { Value::Array(answers) } else { answers.swap_remove(0) };
    whole.to_string().into_bytes()
}

/// The page of a lie about a delivered request.
fn told(lie: &Lie, body: &Body, method: &str, mut answers: Vec<Value>) -> Option<Page> {
    let matching = body.calls.iter().zip(&mut answers).filter(|(call, _)| fits(method, call));
    match lie {
        Lie::LoseAnswer => return None,
        Lie::StatusAfter(status) => return Some(page(*status, "", b"")),
        Lie::SayAfter { code, message } => {
            matching.for_each(|(call, answer)| *answer = refusal(&call["id"], *code, message));
        }
        Lie::Change(change) => {
            let results = matching.filter_map(|(_, answer)| answer.get_mut("result"));
            results.for_each(|result| change(result));
        }
        Lie::SwapIds => swap_ids(&mut answers),
        Lie::LongAnswer => answers[0]["padding"] = json!("0".repeat(LONG_ANSWER_BYTES)),
        _ => {}
    }
    let bytes = written(body, answers);
    Some(match lie {
        Lie::HalfAnswer => {
            let mut page = json_page(&bytes);
            page.bytes.truncate(page.bytes.len() - bytes.len() / 2);
            Page { closes: true, ..page }
        }
        Lie::Gzip => page(200, "Content-Encoding: gzip\r\n", &bytes),
        _ => json_page(&bytes),
    })
}

/// A call as an endpoint with an older head reads it: tags mean older blocks.
fn aged(call: &Value, height: u64) -> Value {
    let mut call = call.clone();
    for parameter in call["params"].as_array_mut().into_iter().flatten() {
        let behind = match parameter.as_str() {
            Some("latest" | "pending") => 0,
            Some("safe") => SLOTS_IN_AN_EPOCH,
            Some("finalized") => 2 * SLOTS_IN_AN_EPOCH,
            _ => continue,
        };
        *parameter = json!(hex_of(height.saturating_sub(behind)));
    }
    call
}

/// A result as an endpoint with an older head has it: nothing of later blocks.
fn age(method: &str, result: &mut Value, height: u64) {
    let is_newer = |value: &Value| {
        let block = value.get("number").or_else(|| value.get("blockNumber"));
        block.is_some_and(|block| block.is_string() && number(block) > height)
    };
    match result {
        Value::Array(parts) => parts.retain(|part| !is_newer(part)),
        whole if is_newer(whole) => *whole = Value::Null,
        whole if method == "eth_blockNumber" => {
            *whole = json!(hex_of(height.min(number(whole))));
        }
        _ => {}
    }
}
