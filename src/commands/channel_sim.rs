//! `ubscore channel-sim`: a simulator of payment channels. It is no channel, and moves no money.
//!
//! It speaks the formats of WeChat Pay and of Stripe on loopback, with crypto and storage of its
//! own: no line is shared with the adapters in [`crate::channels`], so that an error in one is not
//! repeated in the other. `POST /pay/{merchant_no}` pays as a person would. The routes below
//! `/sim/` make it fail in the ways of a real channel.

mod books;
mod card;
mod courier;
mod crypto;
mod door;
mod fault;
mod keys;
mod person;
mod wechat;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};
use parking_lot::Mutex;

use self::books::Books;
use self::door::{Asked, Manner, Reply};
use self::fault::Faults;
use self::keys::Keys;
use crate::cli::ChannelSimArgs;
use crate::clock::{Clock, SystemClock};
use crate::entropy::{Entropy, SystemEntropy};
use crate::exit::Exit;

/// The simulator: its books, keys and faults.
struct Sim {
    books: Mutex<Books>,
    keys: Mutex<Keys>,
    faults: Mutex<Faults>,
    entropy: Mutex<SystemEntropy>,
    clock: SystemClock,
    /// `http://ADDR`, as a bill's address begins.
    base: String,
}

/// Runs until the process is ended. Prints the address once it answers.
///
/// # Errors
/// The address is not on loopback or is taken, or the directory cannot be used.
pub fn run(args: &ChannelSimArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let listen: SocketAddr = args.listen;
    ensure!(listen.ip().is_loopback(), "--listen {listen} is not on loopback: this is a simulator");
    std::fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("make {}", args.data_dir.display()))?;
    let keys = Keys::open(&args.data_dir).context("read or make the keys")?;
    let books = Books::open(&args.data_dir.join("books.jsonl")).context("read the books")?;
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    let address = listener.local_addr().context("the own address")?;
    let sim = Arc::new(Sim {
        books: Mutex::new(books),
        keys: Mutex::new(keys),
        faults: Mutex::default(),
        entropy: Mutex::default(),
        clock: SystemClock::new(),
        base: format!("http://{address}"),
    });
    let agent = courier::agent(args.ca.as_deref()).context("read the issuers of --ca")?;
    courier::start(&sim, agent)?;
    if args.until_stdin_ends {
        end_with_stdin()?;
    }
    writeln!(out, "ubscore channel-sim ready http={address}")?;
    out.flush()?;
    match door::serve(listener, move |asked| sim.answer(asked))? {}
}

/// Ends this process when standard input ends.
fn end_with_stdin() -> std::io::Result<()> {
    let watch = || {
        // An error is an end as well.
        drop(std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
        std::process::exit(0);
    };
    thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}

impl Sim {
    /// Answers one request, spoiled where a fault says so.
    fn answer(&self, asked: &Asked) -> Manner {
        let path = asked.path();
        if path.starts_with("/sim/") || path.starts_with("/pay/") {
            return Manner::Whole(person::answer(self, asked));
        }
        let faults = self.faults.lock().clone();
        let answer = || match path.split('/').nth(1) {
            Some("v3") => wechat::answer(self, asked),
            Some("v1") => card::answer(self, asked),
            _ => Reply::json(404, &serde_json::json!({"code": "NO_ROUTE"})),
        };
        let Some(fault) = faults.answer else { return Manner::Whole(answer()) };
        // With `lost` the request has no effect.
        let carried_out = (!faults.lost).then(answer);
        if fault == fault::AnswerFault::Error {
            card::store_failure(self, asked);
        }
        fault.spoil(carried_out)
    }

    /// Seconds since 1970.
    fn now_s(&self) -> i64 {
        i64::try_from(self.clock.now_s()).expect("before the year 292 billion")
    }

    /// 32 random hexadecimal digits.
    fn random(&self) -> String {
        format!("{:032x}", self.entropy.lock().u128())
    }
}
