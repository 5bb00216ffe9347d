//! The nodes of a soak. Each has a way of its own to PostgreSQL and to the chain, and a thread that
//! breaks them.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use alloy_primitives::B256;
use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::crash::TXM_POINTS;

use super::Soak;
use crate::harness::{ANY, ChainProxy, Lie, Passing, Proxy, SEND, Speaker, eventually, hex_of};
use crate::txm_real::PAYEE;
use crate::txm_real::place::{Party, Place};

/// Manners of the way to PostgreSQL.
const OPEN: u8 = 0;
const SILENT: u8 = 1;
const LOSING: u8 = 2;
/// Of the server's messages one in so many is lost, with its connection, in the manner [`LOSING`].
const LOST_ONE_IN: usize = 24;
/// The longest fault, ms: beyond the lease, so that another node takes over in most of them.
const FAULT_MS_MAX: usize = 3_000;

/// A node, or its place while it is dead.
pub(super) struct SoakSeat {
    name: &'static str,
    way: Proxy,
    manner: Arc<AtomicU8>,
    pub(super) chain: Arc<ChainProxy>,
    urls: String,
    node: Mutex<Option<Arc<Party>>>,
}

/// A fault of one node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Pause,
    CutPostgres,
    SilencePostgres,
    LoseAnswers,
    CutChain,
    CutBoth,
    Lie,
    OldHead,
}

const FAULTS: [Fault; 14] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Stop,
    Fault::Pause,
    Fault::Pause,
    Fault::CutPostgres,
    Fault::SilencePostgres,
    Fault::LoseAnswers,
    Fault::CutChain,
    Fault::CutBoth,
    Fault::Lie,
    Fault::Lie,
    Fault::Lie,
    Fault::OldHead,
];

/// Texts that endpoints say to a send.
const TEXTS: [&str; 12] = [
    "already known",
    "nonce too low: next nonce 5, tx nonce 3",
    "replacement transaction underpriced",
    "max fee per gas less than block base fee",
    "Transaction nonce is too far in the future",
    "txpool is full",
    "insufficient funds for gas * price + value",
    "tx fee (1.10 ether) exceeds the configured cap",
    "intrinsic gas too low",
    "invalid sender",
    "transaction underpriced",
    "the moon is full",
];

/// A lie by chance: its name, and the method that it is about.
fn lie(soak: &Soak) -> (String, &'static str, Lie) {
    const RECEIPT: &str = "eth_getTransactionReceipt";
    let random = &soak.random;
    let other = json!(B256::repeat_byte(7).to_string());
    let text = TEXTS[random.below(TEXTS.len())];
    let of_calls = |method: &'static str| {
        let lies = [
            ("no request", Lie::LoseRequest),
            ("no answer", Lie::LoseAnswer),
            ("429", Lie::Status(429)),
            ("502 behind it", Lie::StatusAfter(502)),
            ("a page", Lie::Html),
            ("a redirect", Lie::Redirect),
            ("half an answer", Lie::HalfAnswer),
            ("ids exchanged", Lie::SwapIds),
            ("compressed", Lie::Gzip),
            ("late", Lie::DelayAnswer),
            ("waiting", Lie::Delay),
        ];
        let (name, lie) = lies[random.below(lies.len())].clone();
        (format!("{method}: {name}"), method, lie)
    };
    let of_receipts = || {
        let lies = [
            ("of another one", Lie::field("transactionHash", other.clone())),
            ("status 2", Lie::field("status", json!("0x2"))),
            ("another block", Lie::field("blockHash", other.clone())),
            ("another height", Lie::field("blockNumber", json!("0xffff"))),
            ("of another sender", Lie::field("from", json!(hex_of(PAYEE)))),
            ("no receipt", Lie::result(Value::Null)),
            ("an error", Lie::say("missing trie node")),
        ];
        let (name, lie) = lies[random.below(lies.len())].clone();
        (format!("receipt: {name}"), RECEIPT, lie)
    };
    match random.below(8) {
        0 => of_calls(ANY),
        1 | 2 => of_calls(SEND),
        3 => of_receipts(),
        4 => ("another hash".to_owned(), SEND, Lie::result(other)),
        5 => ("a doubled send".to_owned(), SEND, Lie::Double),
        6 => (format!("taken, and said: {text}"), SEND, say_after(text)),
        _ => (format!("said: {text}"), SEND, Lie::say(text)),
    }
}

fn say_after(text: &str) -> Lie {
    Lie::SayAfter { code: -32_000, message: text.to_owned() }
}

impl SoakSeat {
    /// A seat, its node not started.
    pub(super) fn new(place: &Place, name: &'static str, has_second: bool) -> SoakSeat {
        let (manner, server_said) = (Arc::new(AtomicU8::new(OPEN)), AtomicUsize::new(0));
        let now = Arc::clone(&manner);
        let way = Proxy::start(&place.site, move |speaker, _| match now.load(Ordering::Relaxed) {
            SILENT => Passing::Nothing,
            LOSING if speaker == Speaker::Server => {
                let is_lost = server_said.fetch_add(1, Ordering::Relaxed) % LOST_ONE_IN == 0;
                if is_lost { Passing::Cut(0) } else { Passing::All }
            }
            _ => Passing::All,
        });
        let chain = place.endpoint(&place.chain);
        let own = chain.url();
        let urls = if has_second { format!("{own},{}", place.proxy.url()) } else { own };
        SoakSeat { name, way, manner, chain, urls, node: Mutex::default() }
    }

    /// Its node, which may have ended already.
    pub(super) fn node(&self) -> Option<Arc<Party>> {
        self.node.lock().expect("no panic").clone()
    }

    /// The words of its node.
    pub(super) fn words(&self) -> String {
        self.node().map(|node| node.words()).unwrap_or_default()
    }

    /// Both ways are open, and the endpoint is honest.
    fn opens(&self) {
        if self.manner.swap(OPEN, Ordering::Relaxed) != OPEN {
            // The lost bytes of a silent connection never come.
            self.way.refuse();
        }
        self.way.come_back();
        self.chain.honest();
        self.chain.come_back();
    }

    /// Starts its node. One in three gets a point at which it dies.
    fn starts(&self, soak: &Soak) {
        let point = TXM_POINTS[soak.random.below(TXM_POINTS.len())];
        let is_armed = cfg!(feature = "crash") && soak.goes_on() && soak.random.once_in(3);
        let armed = is_armed.then_some(("UBSCORE_CRASH", point));
        let settings = [("POSTGRES_URL", self.way.url.as_str()), ("CHAIN__RPC_URLS", &self.urls)];
        let settings: Vec<_> = settings.into_iter().chain(armed).collect();
        let _no_fault_of_all = soak.starts.read().expect("no panic");
        let node = soak.place.node(self.name, &settings);
        *self.node.lock().expect("no panic") = Some(Arc::new(node));
    }

    /// Ends its node by a signal, and waits for its end.
    fn ends(&self, soak: &Soak, signal: Signal) {
        let Some(node) = self.node.lock().expect("no panic").take() else { return };
        if !node.is_gone() {
            node.send_signal(signal);
        }
        eventually("the end of a node", || node.is_gone().then_some(()));
        soak.words.lock().expect("no panic").push_str(&node.words());
    }

    /// Its node runs, without a point at which it dies, on honest ways.
    pub(super) fn is_well(&self, soak: &Soak) {
        self.opens();
        self.ends(soak, Signal::TERM);
        self.starts(soak);
    }
}

impl Soak {
    /// Faults of a node, one by one.
    pub(super) fn trouble(&self, seat: &SoakSeat) {
        while self.goes_on() {
            match seat.node() {
                None => seat.starts(self),
                Some(node) if node.is_gone() => {
                    self.counts("death at a point");
                    seat.ends(self, Signal::KILL);
                    seat.starts(self);
                }
                Some(node) => {
                    self.random.pause(1_500);
                    self.hit(seat, &node);
                    seat.opens();
                }
            }
        }
    }

    fn hit(&self, seat: &SoakSeat, node: &Party) {
        let fault = FAULTS[self.random.below(FAULTS.len())];
        match fault {
            Fault::Kill => seat.ends(self, Signal::KILL),
            Fault::Stop => seat.ends(self, Signal::TERM),
            Fault::Pause => {
                node.send_signal(Signal::STOP);
                self.random.pause(FAULT_MS_MAX);
                node.send_signal(Signal::CONT);
            }
            Fault::CutPostgres => seat.way.refuse(),
            Fault::SilencePostgres => seat.manner.store(SILENT, Ordering::Relaxed),
            Fault::LoseAnswers => seat.manner.store(LOSING, Ordering::Relaxed),
            Fault::CutChain => seat.chain.refuse(),
            Fault::CutBoth => {
                seat.way.refuse();
                seat.chain.refuse();
            }
            Fault::OldHead => {
                let height = self.place.chain.height();
                seat.chain.serve_old_head(height.saturating_sub(self.random.below(6) as u64));
            }
            Fault::Lie => {
                let (name, method, lie) = lie(self);
                seat.chain.lie(method, lie);
                self.counts(name);
            }
        }
        self.counts(format!("{fault:?}"));
        if !matches!(fault, Fault::Kill | Fault::Stop | Fault::Pause) {
            thread::sleep(Duration::from_millis(200));
            self.random.pause(FAULT_MS_MAX);
        }
    }
}
