//! The book of `examples/`: a matching engine with its money in ubscore. Both are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use bytes::BytesMut;
use domain::code::Code;
use engine::entry::Entry;
use serde_json::json;
use stream::block::{Answer, Opened};
use stream::frame::cutter;
use stream::message::Message;
use tokio_util::codec::Decoder;
use ubscore::entropy::{Entropy, SystemEntropy};
use ubscore::http::auth::Role;
use wal::{Directory, Reader};

use crate::harness::{
    ADMIN, COIN, PATIENCE, Server, Site, Way, cut_log, eventually, repair, soak_rounds, split_mix,
    text, token, units,
};
#[cfg(feature = "crash")]
use crate::power::Powered;

const VENUE: u32 = 7;
const TRADERS: [u64; 4] = [4_001, 4_002, 4_003, 4_004];
const FEES: u64 = 4_009;
/// Each trader's money at the beginning, whole coins.
const COINS: [(&str, u128); 2] = [("BTC", 2), ("USDT", 100_000)];

/// Requests of one run: far more than are made before a kill.
const ENDLESS: u64 = 1_000_000;

/// The site with a socket for venues, a registered venue, and money of its traders on Spot.
fn market(site: Site) -> (Site, PathBuf, Server) {
    let socket = site.fresh_path("stream");
    let site = site.with("UBSCORE__STREAM__SOCKET", socket.display());
    let server = site.start();
    let body = json!({"name": "book", "reason": "a test"});
    let reply = server.admin("PUT", &format!("/admin/v1/venues/{VENUE}"), &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    for user in TRADERS.into_iter().chain([FEES]) {
        for (symbol, coins) in COINS {
            let amount = coins.to_string();
            server.deposit(user, symbol, &amount);
            let reply =
                server.post_ended(user, &Way::ToSpot.body_with_cid(symbol, &amount, symbol));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    (site, socket, server)
}

/// A running book. Dropping it kills it.
struct Book {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Book {
    fn command(socket: &Path, journal: &Path) -> Command {
        let mut command = Book::anywhere(journal);
        command.env("UBSCORE_TOKEN", token(ADMIN, Some(Role::Venue(VENUE))));
        command.arg("--socket").arg(socket);
        command
    }

    /// A book in one process with its server, which makes its own requests.
    fn embedded(site: &Site, journal: &Path, requests: u64, seed: u64) -> Book {
        let mut command = Book::anywhere(journal);
        let server = site.command();
        command.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("UBSCORE__DATA_DIR", &site.data_dir);
        command.env("UBSCORE__POSTGRES__URL", site.url());
        command.env("UBSCORE__HTTP__LISTEN", "127.0.0.1:0");
        command.env("UBSCORE__OPS__LISTEN", "127.0.0.1:0");
        command.arg("--embed");
        Book::with_random(command, requests, seed)
    }

    fn anywhere(journal: &Path) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory");
        let example = binaries.join("examples/book");
        assert!(example.is_file(), "run: cargo build --example book --features crash");
        let mut command = Command::new(example);
        command.arg("--journal").arg(journal);
        command.args(["--venue", &VENUE.to_string(), "--fees", &FEES.to_string()]);
        command
    }

    /// A book that makes its own requests.
    fn random(socket: &Path, journal: &Path, requests: u64, seed: u64) -> Book {
        Book::with_random(Book::command(socket, journal), requests, seed)
    }

    fn with_random(mut command: Command, requests: u64, seed: u64) -> Book {
        command.args(["--random", &requests.to_string(), "--seed", &seed.to_string()]);
        command.args(["--users", &TRADERS.map(|user| user.to_string()).join(",")]);
        Book::start(command)
    }

    fn start(mut command: Command) -> Book {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the example");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The test may have ended.
            lines.for_each(|line| drop(sender.send(line)));
        });
        Book { child, input, lines }
    }

    fn ask(&mut self, request: &str) {
        writeln!(self.input.as_mut().expect("open"), "{request}").expect("sent");
    }

    /// The next printed line.
    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    /// Waits for so many lines more.
    fn read(&self, count: u64) {
        (0..count).for_each(|_| drop(self.line()));
    }

    /// Ends its input: the book ends once everything is answered.
    fn without_input(mut self) -> Book {
        drop(self.input.take());
        self
    }

    fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Waits for its end: its exit code and its last lines.
    fn end(mut self) -> (ExitStatus, Vec<String>) {
        let lines = eventually("the book's end", || {
            self.child.try_wait().expect("our own child")?;
            Some(self.lines.iter().collect())
        });
        (self.child.wait().expect("our own child"), lines)
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The answers of a book's journal: a number and its code.
fn answers(journal: &Path) -> BTreeMap<u64, u16> {
    let mut input = BytesMut::from(&fs::read(journal).expect("the journal")[..]);
    let (mut cutter, mut answers) = (cutter(), BTreeMap::new());
    while let Some(frame) = cutter.decode(&mut input).expect("whole frames") {
        if let Message::Answer(answer) = Message::read(&frame).expect("of the schema") {
            let before = answers.insert(answer.number.get(), answer.code.get());
            assert_eq!(before, None, "number {} is answered once", answer.number);
        }
    }
    answers
}

/// The decisions of the venue in the log.
fn decisions(site: &Site) -> BTreeMap<u64, u16> {
    let mut reader = Reader::open(Directory::at(site.log_dir()), 0).expect("a log");
    let mut decisions = BTreeMap::new();
    while let Some(record) = reader.next().expect("sound") {
        if let Entry::Posting(posted) = Entry::decode(record.kind, record.payload).expect("sound") {
            let code = posted.code().map_or(0, |code| code as u16);
            let before = decisions.insert(posted.number, code);
            assert_eq!(before, None, "number {} is decided once", posted.number);
        }
    }
    decisions
}

/// Held amounts of both assets, by the lines of a book that has ended well. The sums of each asset
/// are those of the beginning.
fn held_by_users(book: Book) -> BTreeMap<&'static str, u128> {
    let (status, lines) = book.end();
    assert!(status.success(), "{status}: {lines:?}");
    let sums = COINS.map(|(symbol, coins)| {
        let line = lines.iter().find(|line| line.starts_with(&format!("sum: {symbol} ")));
        let line = line.unwrap_or_else(|| panic!("no sum: {lines:?}"));
        let amounts = line.split([' ', ',']).filter_map(|word| word.parse::<u128>().ok());
        let [available, held] = amounts.take(2).collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(available + held, coins * COIN * (TRADERS.len() as u128 + 1), "{line}");
        (symbol, held)
    });
    BTreeMap::from(sums)
}

/// The sums of all holds in the engine's table, by asset.
fn held_in_rows(server: &Server) -> BTreeMap<&'static str, u128> {
    let held = |symbol: &'static str| {
        let (mut sum, mut cursor) = (0, String::new());
        loop {
            let page = server.admin_get(&format!("/admin/v1/holds?asset={symbol}{cursor}")).json();
            let rows = page["holds"].as_array().unwrap_or_else(|| panic!("{page}"));
            sum += rows.iter().map(|row| units(text(&row["amount"]))).sum::<u128>();
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return (symbol, sum),
            }
        }
    };
    BTreeMap::from(COINS.map(|(symbol, _)| held(symbol)))
}

/// A book that makes orders by chance, and the deaths that it meets.
struct Soak {
    site: Site,
    socket: PathBuf,
    journal: PathBuf,
    /// Of SplitMix64.
    state: u64,
    answered: usize,
}

/// The process that a round kills.
#[derive(Clone, Copy, Debug)]
enum Death {
    Book,
    Server,
    Both,
    /// One process has the book and the server.
    Embedded,
}

impl Soak {
    /// A market. Segments roll and snapshots are taken during a run.
    fn new(site: Site, seed: u64) -> Soak {
        let site = site
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 18)
            .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 500);
        let (site, socket, server) = market(site);
        let journal = site.fresh_path("journal");
        // Its sums name every trader from here on.
        held_by_users(Book::random(&socket, &journal, 200, seed));
        server.kill();
        Soak { site, socket, journal, state: seed, answered: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        split_mix(&mut self.state) % bound
    }

    /// Orders until a death at a random answer.
    fn trade_until(&mut self, death: Death) {
        let (answers, seed) = (self.below(400), split_mix(&mut self.state));
        if let Death::Embedded = death {
            let book = Book::embedded(&self.site, &self.journal, ENDLESS, seed);
            book.read(50 + answers);
            return book.kill();
        }
        let server = self.site.start();
        let book = Book::random(&self.socket, &self.journal, ENDLESS, seed);
        book.read(answers);
        match death {
            Death::Book => book.kill(),
            Death::Both => {
                server.kill();
                book.kill();
            }
            _ => {
                server.kill();
                let _server = self.site.start();
                // It connects again by itself.
                book.read(100);
                book.kill();
            }
        }
    }

    /// After a death: each answer stands, each one is told, all sums are those of the beginning,
    /// and what users hold are the rows of holds, which are those of the open orders.
    fn assert_whole(&mut self) {
        let server = self.site.start();
        let book = Book::start(Book::command(&self.socket, &self.journal)).without_input();
        assert_eq!(held_by_users(book), held_in_rows(&server));
        self.site.assert_verified();
        server.kill();
        let answers = answers(&self.journal);
        assert_eq!(answers, decisions(&self.site), "none is taken back, and each one is told");
        let poor = Code::InsufficientBalance as u16;
        assert!(answers.values().all(|code| [0, poor].contains(code)), "{answers:?}");
        assert!(answers.len() >= self.answered.max(100), "{}", answers.len());
        self.answered = answers.len();
    }
}

/// Rounds of several sites: the journal and the log of each one grow, and are read after each
/// death. Prints one line for each.
fn soak(rounds: usize, site: impl Fn() -> Site, mut round: impl FnMut(&mut Soak) -> String) {
    /// Rounds of one site.
    const SITE_ROUNDS: usize = 50;
    let seed = SystemEntropy::default().u64();
    println!("seed {seed}");
    let mut answered = 0;
    for first in (0..rounds).step_by(SITE_ROUNDS) {
        let mut soak = Soak::new(site(), seed.wrapping_add(first as u64));
        for number in first..rounds.min(first + SITE_ROUNDS) {
            let what = round(&mut soak);
            soak.assert_whole();
            println!("round {number}: {what}; {} answers", soak.answered);
        }
        answered += soak.answered;
    }
    println!("{rounds} rounds, {answered} answers compared: 0 violations");
}

/// HLD-014. Goal: no kill of the book or of the server makes, loses or strands money, and none
/// takes an answer back. Method: random orders of four traders; in each round SIGKILL comes behind
/// a random number of printed answers, to the book, to the server, or to both. After each one the
/// sums, the holds of the open orders, `verify`, and each answer of the journal against the log.
/// `make soak FAMILY=trades` runs more rounds ([`soak_rounds`]).
#[test]
fn kills_of_the_book_and_of_the_server_neither_lose_nor_strand_money() {
    soak(soak_rounds().unwrap_or(4), Site::new, |soak| {
        let deaths = [Death::Book, Death::Server, Death::Both];
        let death = deaths[usize::try_from(soak.below(3)).expect("small")];
        soak.trade_until(death);
        format!("{death:?}")
    });
}

/// HLD-014, in one process. Goal: nothing at or below `durable()` is taken back. Method: as above,
/// and a kill ends both sides at once. The book prints durable answers only.
#[test]
fn kills_of_a_book_with_its_server_inside_take_nothing_back() {
    soak(soak_rounds().unwrap_or(2), Site::new, |soak| {
        soak.trade_until(Death::Embedded);
        let added = "SELECT subject, detail FROM admin_audit WHERE actor = 'program'";
        let row = [format!("venue {VENUE}"), "book posts=false".to_owned()];
        let added = soak.site.sql(added);
        assert!(!added.is_empty() && added.iter().all(|found| found[..] == row), "{added:?}");
        format!("{:?}", Death::Embedded)
    });
}

/// HLD-014. Goal: no power cut takes back an answer. Method: as above, and after each kill of the
/// server its log is the synced bytes and a random part of the others. The journal of the book is
/// on another machine's disk.
#[test]
#[cfg(feature = "crash")]
fn power_cuts_under_a_book_take_nothing_back() {
    let powered = std::cell::RefCell::new(None);
    let site = || {
        let new = Powered::new(true);
        let site = new.site.clone();
        powered.replace(Some(new));
        site
    };
    soak(soak_rounds().unwrap_or(4), site, |soak| {
        let death = [Death::Both, Death::Embedded][usize::from(soak.below(2) == 0)];
        soak.trade_until(death);
        let powered = powered.borrow();
        powered.as_ref().expect("made above").cut_power(|| split_mix(&mut soak.state));
        format!("power cut, {death:?}")
    });
}

/// Goal: each kind of request, as the example explains it, and a book that has lost its journal:
/// its orders are gone, and the money of each is free again.
#[test]
fn orders_trade_and_a_book_without_its_journal_frees_their_money() {
    let (site, socket, server) = market(Site::new());
    let journal = site.fresh_path("journal");
    let mut book = Book::start(Book::command(&socket, &journal));
    assert_eq!(book.line(), "opened: epoch 1, last 0, told 0");
    for (request, said) in [
        ("sell 4001 50000 4", &["1 order: 4001 sells 4 at 50000: SUCCESS"][..]),
        ("sell 4002 49999 2", &["2 order: 4002 sells 2 at 49999: SUCCESS"]),
        // Price, then time; the improvement is given back, and the rest stays.
        (
            "buy 4003 50001 10",
            &[
                "3 order: 4003 buys 10 at 50001: SUCCESS",
                "4 trade: 3 buys 2 of 2 at 49999: SUCCESS",
                "5 trade: 3 buys 4 of 1 at 50000: SUCCESS",
            ],
        ),
        ("reduce 3 1", &["6 release of 3: SUCCESS"]),
        (
            "sell 4003 50001 5 ioc",
            &[
                "7 order: 4003 sells 5 at 50001: SUCCESS",
                "8 trade: 3 buys 3 of 7 at 50001: SUCCESS",
                "9 release of 7: SUCCESS",
            ],
        ),
        ("buy 4004 60000 100000", &["10 order: 4004 buys 100000 at 60000: INSUFFICIENT_BALANCE"]),
        ("cancel 3", &["cancel 3: no open order"]),
        ("sell 4004 60000 7", &["11 order: 4004 sells 7 at 60000: SUCCESS"]),
        ("buy 4001 10 7", &["12 order: 4001 buys 7 at 10: SUCCESS"]),
        ("cancel 12", &["13 release of 12: SUCCESS"]),
    ] {
        book.ask(request);
        for line in said {
            assert_eq!(book.line(), *line, "{request}");
        }
    }
    book.kill();

    // With its journal it goes on.
    let book = Book::start(Book::command(&socket, &journal)).without_input();
    assert_eq!(book.line(), "opened: epoch 2, last 13, told 13");
    assert_eq!(book.line(), "open: 1 orders, and each has its hold");
    held_by_users(book);

    fs::remove_file(&journal).expect("the journal");
    let book = Book::start(Book::command(&socket, &journal)).without_input();
    assert_eq!(book.line(), "opened: epoch 3, last 13, told 13");
    assert_eq!(book.line(), "11 is cancelled: it needs 0, and holds 700000");
    assert_eq!(book.line(), "14 release of 11: SUCCESS");
    assert_eq!(book.line(), "open: 0 orders, and each has its hold");
    let (status, lines) = book.end();
    assert!(status.success(), "{status}: {lines:?}");
    site.assert_verified();
    drop(server);
}

/// Changes each message of a journal.
fn edit(journal: &Path, change: impl Fn(Message<'_>, &mut BytesMut)) {
    let mut input = BytesMut::from(&fs::read(journal).expect("the journal")[..]);
    let (mut cutter, mut output) = (cutter(), BytesMut::new());
    while let Some(frame) = cutter.decode(&mut input).expect("whole frames") {
        change(Message::read(&frame).expect("of the schema"), &mut output);
    }
    fs::write(journal, output).expect("the journal");
}

/// Goal: a book that cannot agree with the log stops for people. It neither trades on nor waits for
/// ever. Method: two journals are edited: a refusal that is not acknowledged becomes a success, as
/// if a cut had turned the answer around and a kill had kept it from the book; and a journal begins
/// after the end of the log.
#[test]
fn a_book_that_the_log_contradicts_stops() {
    let (site, socket, server) = market(Site::new());
    let journal = site.fresh_path("journal");
    let stops = |journal: &Path, why: &str| {
        let (mut command, said) = (Book::command(&socket, journal), site.fresh_path("said"));
        command.stderr(fs::File::create(&said).expect("a file"));
        let (status, lines) = Book::start(command).without_input().end();
        let said = fs::read_to_string(&said).expect("text");
        assert_eq!(status.code(), Some(1), "{lines:?} {said}");
        assert!(said.contains(why), "{said}");
    };
    let mut book = Book::start(Book::command(&socket, &journal));
    book.ask("sell 4001 50000 999999");
    book.read(2);
    book.kill();
    edit(&journal, |message, output| match message {
        Message::Answer(answer) => {
            assert_eq!(answer.code.get(), Code::InsufficientBalance as u16);
            let answer = Answer { code: 0.into(), ..*answer };
            Message::Answer(&answer).append_to(output);
        }
        message => message.append_to(output),
    });
    stops(&journal, "1 succeeded, and now it is refused");

    let later = site.fresh_path("later");
    let book = Book::start(Book::command(&socket, &later)).without_input();
    let (status, lines) = book.end();
    assert!(status.success(), "{status}: {lines:?}");
    edit(&later, |message, output| match message {
        Message::Opened(opened) => {
            let opened = Opened { last: 5.into(), ..*opened };
            Message::Opened(&opened).append_to(output);
        }
        message => message.append_to(output),
    });
    stops(&later, "the log ends with 1, and the journal begins after 5");
    drop(server);
}

/// The record of a number of the venue.
fn record_of(site: &Site, number: u64) -> u64 {
    let mut reader = Reader::open(Directory::at(site.log_dir()), 0).expect("a log");
    while let Some(record) = reader.next().expect("sound") {
        match Entry::decode(record.kind, record.payload).expect("sound") {
            Entry::Posting(posted) if posted.number == number => return record.sequence,
            _ => {}
        }
    }
    panic!("no number {number} in the log")
}

/// RCV-007, with the example. Goal: a book sends again, by itself, what a cut of the log has taken
/// from it, refusals among that, and goes on after the resume. Method: all numbers of random orders
/// are cut off. At the end the sums, and each answer against the log.
#[test]
fn a_book_sends_again_what_a_cut_of_the_log_has_lost() {
    let (site, socket, server) = market(Site::new());
    let journal = site.fresh_path("journal");
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    // Its user has no money for it.
    let mut book = Book::start(Book::command(&socket, &journal));
    book.ask("sell 4001 50000 999999");
    book.read(2);
    book.kill();
    held_by_users(Book::random(&socket, &journal, 300, seed));
    let before = answers(&journal);
    let told = before.len() as u64;
    server.kill();
    cut_log(&site, record_of(&site, 1));
    let apply = || {
        let (code, out, err) = repair(&site, &["--apply", "--reason", "a test"]);
        assert_eq!(code, Some(0), "{out}{err}");
        out
    };
    assert!(apply().contains("waits    for venue 7 has opened no session"));
    let server = site.start();
    let book = Book::random(&socket, &journal, 50, split_mix(&mut seed.clone()));
    let number = |server: &Server| {
        let listed = server.admin_get("/admin/v1/venues").json();
        listed["venues"][0]["number"].as_u64().expect("a number")
    };
    eventually("all lost numbers", || (number(&server) == told).then_some(()));
    server.stop();
    assert!(!apply().contains("waits"));
    let server = site.start();
    assert_eq!(number(&server), told, "new numbers wait for the resume");
    let resumed = server.resume("a test");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    held_by_users(book);
    site.assert_verified();
    let succeeds = |all: BTreeMap<u64, u16>| -> BTreeMap<u64, bool> {
        all.into_iter().map(|(number, code)| (number, code == 0)).collect()
    };
    let after = answers(&journal);
    assert!(after.len() as u64 > told, "{}", after.len());
    assert_eq!(succeeds(after), succeeds(decisions(&site)));
    server.stop();
}
