//! A matching engine for one market, BTC against USDT. ubscore holds its money.
//!
//! ```text
//! UBSCORE_TOKEN=$(ubscore token --user 1 --venue 7) \
//!     cargo run --example book -- --socket /run/ubscore/stream.sock --venue 7 --fees 1003
//! ```
//!
//! Reads one request a line: `buy USER PRICE LOTS [ioc]`, `sell USER PRICE LOTS [ioc]`,
//! `cancel ORDER`, `reduce ORDER LOTS`. A price is whole USDT for one BTC; a lot is 0.001 BTC. An
//! order is named by the number of the command that set its money apart.
//!
//! Why it is safe:
//!
//! - An order rests or trades only once its money is set apart. One set moves both sides of a
//!   trade, both fees and the price improvement. All of its legs are booked, or none.
//! - Each command is in the journal, synced, before it is sent. A command without an answer is sent
//!   again with the same number and the same bytes, and has one effect.
//! - An answer is in the journal, synced, before it is printed or acknowledged.
//! - After a cut of the log it sends again all that the log has lost. A command that was refused is
//!   replaced by one that is refused in any state. A success that is refused now ends the book.
//! - The journal decides the book: it is read in order at the start, through the same functions.
//!   Then the holds of ubscore are compared. A difference ends the order and frees its money.
//!
//! It prints each answer, and at the end of the input the sums. It reconnects until then. Exit code
//! 0: each answer has come and the holds are those of the open orders; 1: people must look; 2:
//! wrong arguments. It is an example: self-trades are booked, the journal grows without end, and
//! the token is not renewed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use clap::Parser;
use crossbeam::channel::{never, select};
use stream::block::{Acknowledge, Answer};
use stream::message::Message;
use ubscore::service::Service;

use self::door::{ALIVE_AFTER, Lost, Session};
use self::journal::{Journal, number_of};
use self::orders::{BTC, Book, USDT};
use self::requests::{Random, Requests};

#[path = "book/door.rs"]
mod door;
#[path = "book/embed.rs"]
mod embed;
#[path = "book/journal.rs"]
mod journal;
#[path = "book/orders.rs"]
mod orders;
#[path = "book/requests.rs"]
mod requests;

/// Commands without an answer at once, far below the window of ubscore.
const WAITING_MAX: usize = 1_000;
/// Bytes of the journal from which on one sync is made.
const STEPS_BYTES: usize = 1 << 12;
/// Between two tries to reach ubscore.
const RETRY: Duration = Duration::from_millis(50);

/// A matching engine with its money in ubscore.
#[derive(Parser)]
struct Arguments {
    /// The socket of ubscore.
    #[arg(long, required_unless_present = "embed")]
    socket: Option<PathBuf>,
    /// Runs ubscore in this process, as `ubscore serve --dev` with the same environment, and adds
    /// the venue.
    #[arg(long, conflicts_with = "socket")]
    embed: bool,
    /// The number of this venue.
    #[arg(long)]
    venue: u32,
    /// The user that receives the fees. It needs a Spot account.
    #[arg(long)]
    fees: u64,
    /// The journal; made if absent.
    #[arg(long, default_value = "book.journal")]
    journal: PathBuf,
    #[command(flatten)]
    random: Random,
}

/// A book at work.
struct Market {
    arguments: Arguments,
    /// ubscore, if it is embedded.
    service: Option<Service>,
    journal: Journal,
    book: Book,
    requests: Requests,
    /// Steps that are not in the journal yet, and the commands among them.
    steps: BytesMut,
    commands: BytesMut,
}

impl Market {
    /// The state that the journal leads to.
    fn new(arguments: Arguments) -> anyhow::Result<Market> {
        let mut journal = Journal::open(&arguments.journal)?;
        let mut book = Book::new(arguments.fees);
        for frame in journal.frames()? {
            let message = Message::read(&frame).ok().context("a frame of the journal")?;
            if let Some(expected) = book.out.pop_front() {
                ensure!(expected[4..] == frame[..], "the journal is of another book or fee user");
                continue;
            }
            match message {
                Message::Opened(opened) => book.told = opened.last.get(),
                Message::Answer(answer) => book.answer(answer)?,
                command => {
                    ensure!(number_of(&command) == Some(book.next()), "{command:?} in the journal");
                    book.apply(&command);
                }
            }
        }
        book.said.clear();
        let service = arguments.embed.then(|| embed::start(arguments.venue)).transpose()?;
        let requests = Requests::new(&arguments.random);
        let (steps, commands) = (BytesMut::new(), BytesMut::new());
        let mut market = Market { arguments, service, journal, book, requests, steps, commands };
        // The commands of a torn end.
        market.take_commands();
        Ok(market)
    }

    /// Opens a session, and brings book and ubscore to one state.
    fn begin(&mut self) -> anyhow::Result<(Session, usize)> {
        // The journal has all that is sent from here on.
        self.keep_steps()?;
        self.commands.clear();
        let (venue, told) = (self.arguments.venue, self.book.told);
        let (mut session, opened) = match &self.service {
            Some(service) => Session::embed(service, venue, told)?,
            None => {
                let socket = self.arguments.socket.as_ref().context("no socket")?;
                Session::open(socket, venue, told)?
            }
        };
        let last = opened.last.get();
        let first = match self.journal.begun()? {
            Some(first) => first,
            None => {
                Message::Opened(&opened).append_to(&mut self.steps);
                self.keep_steps()?;
                self.book.told = last;
                opened
            }
        };
        ensure!(first.log == opened.log, "ubscore has another log");
        let (told, end, before) = (self.book.told, self.book.next(), first.last.get());
        ensure!(last < end, "ubscore has number {last}, and the journal ends before {end}");
        ensure!(last >= before, "the log ends with {last}, and the journal begins after {before}");
        println!("opened: epoch {}, last {last}, told {told}", opened.epoch);
        let (mut decided, mut answers) = (told.min(last), Vec::new());
        let successes = self.journal.successes()?;
        self.compare(&mut session, opened.acknowledged.get() + 1..=decided, &successes)?;
        session.say(&Message::Acknowledge(&Acknowledge { number: decided.into() }))?;
        session.send(&self.journal.commands(|number| number > decided)?)?;
        while decided + 1 < end {
            let frame = session.hear()?;
            match Message::read(&frame) {
                Ok(Message::Answer(answer)) => {
                    decided = answer.number.get();
                    if decided > told {
                        answers.push(*answer);
                    } else if successes.get(&decided) != Some(&(answer.code.get() == 0)) {
                        // The log was restored to an earlier point, and now decides otherwise.
                        bail!("{decided} was answered before with another code");
                    }
                }
                _ => {
                    // With more lost numbers than the window has places, it is full.
                    let number = decided.min(told).into();
                    session.say(&Message::Acknowledge(&Acknowledge { number }))?;
                    self.go_back(&mut session, &frame)?;
                }
            }
        }
        let holds = session.holds()?;
        self.book.compare(&answers, &holds);
        self.take_commands();
        for answer in &answers {
            self.answer(answer)?;
        }
        let window = usize::try_from(opened.window.get()).unwrap_or(usize::MAX);
        self.flush(&mut session)?;
        Ok((session, WAITING_MAX.min(window / 2)))
    }

    /// Compares answers that both sides have. After a cut of the log a number may have been decided
    /// anew just before this book was killed: then the new answer was not heard.
    fn compare(
        &mut self,
        session: &mut Session,
        numbers: RangeInclusive<u64>,
        successes: &BTreeMap<u64, bool>,
    ) -> anyhow::Result<()> {
        // A refused number is refused again, and the log may have either body of it.
        let succeeded = |number: &u64| successes.get(number) == Some(&true);
        let asked: BTreeSet<u64> = numbers.filter(succeeded).collect();
        session.send(&self.journal.commands(|number| asked.contains(&number))?)?;
        for number in asked {
            match Message::read(&session.hear()?) {
                Ok(Message::Answer(answer)) if answer.number.get() == number => {
                    ensure!(answer.code.get() == 0, "{number} succeeded, and now it is refused");
                }
                other => bail!("{other:?} came instead of the answer to {number}"),
            }
        }
        Ok(())
    }

    /// Sends again from the number of a Back on.
    fn go_back(&mut self, session: &mut Session, frame: &[u8]) -> anyhow::Result<()> {
        let Ok(Message::Back(back)) = Message::read(frame) else {
            bail!("{:?} came unasked", Message::read(frame));
        };
        // All from the number on are sent again, out of the journal.
        self.keep_steps()?;
        self.commands.clear();
        thread::sleep(Duration::from_millis(back.after_ms.get().clamp(1, 1_000).into()));
        session.send(&self.journal.commands(|number| number >= back.number.get())?)
    }

    /// Works until the input has ended and each command has its answer.
    fn run(&mut self) -> anyhow::Result<()> {
        let (mut session, waiting_max) = self.begin()?;
        loop {
            let mut is_idle = true;
            while self.book.waiting.len() < waiting_max
                && self.steps.len() < STEPS_BYTES
                && let Some(request) = self.requests.make(&self.book)
            {
                self.request(&request);
                is_idle = false;
            }
            let has_room = self.book.waiting.len() < waiting_max;
            let lines = if has_room { self.requests.lines.clone() } else { never() };
            select! {
                recv(session.heard) -> frame => {
                    let mut frame = Some(frame.map_err(|_| Lost("the server is gone"))?);
                    while let Some(heard) = frame {
                        self.hear(&mut session, heard)?;
                        frame = session.heard.try_recv().ok();
                    }
                }
                recv(lines) -> line => match line {
                    Ok(line) => self.request(&line),
                    Err(_) => self.requests.end_lines(),
                },
                default(if is_idle { ALIVE_AFTER } else { Duration::ZERO }) => {
                    if is_idle {
                        session.say(&Message::Alive)?;
                    }
                }
            }
            self.flush(&mut session)?;
            if self.requests.have_ended() && self.book.waiting.is_empty() {
                return self.finish(&mut session);
            }
        }
    }

    fn hear(&mut self, session: &mut Session, frame: BytesMut) -> anyhow::Result<()> {
        let Some(frame) = session.sort(frame)? else { return Ok(()) };
        match Message::read(&frame) {
            Ok(Message::Answer(answer)) => self.answer(answer),
            _ => self.go_back(session, &frame),
        }
    }

    fn answer(&mut self, answer: &Answer) -> anyhow::Result<()> {
        self.book.answer(answer)?;
        Message::Answer(answer).append_to(&mut self.steps);
        self.take_commands();
        Ok(())
    }

    /// Takes the new commands of the book: for the journal, and for the way to ubscore behind it.
    fn take_commands(&mut self) {
        for command in self.book.out.drain(..) {
            self.steps.extend_from_slice(&command);
            self.commands.extend_from_slice(&command);
        }
    }

    fn keep_steps(&mut self) -> anyhow::Result<()> {
        match self.steps.is_empty() {
            true => Ok(()),
            false => self.journal.append(&self.steps.split()),
        }
    }

    /// Journal, then the commands, the printed lines and the acknowledgement.
    fn flush(&mut self, session: &mut Session) -> anyhow::Result<()> {
        self.keep_steps()?;
        self.book.said.drain(..).for_each(|line| println!("{line}"));
        let mut out = self.commands.split();
        Message::Acknowledge(&Acknowledge { number: self.book.told.into() }).append_to(&mut out);
        session.send(&out)
    }

    /// Takes a request of a user.
    fn request(&mut self, line: &str) {
        if let Err(error) = requests::take(line, &mut self.book) {
            println!("{line}: {error}");
        }
        self.take_commands();
    }

    /// Prints the sums, and compares the holds with the open orders.
    fn finish(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let (holds, needs) = (session.holds()?, self.book.needs());
        ensure!(holds == needs, "the holds are {holds:?}, and the open orders need {needs:?}");
        println!("open: {} orders, and each has its hold", needs.len());
        let users: Vec<u64> = self.book.users.iter().copied().collect();
        for (symbol, asset) in [("BTC", BTC), ("USDT", USDT)] {
            let (mut available, mut held) = (0, 0);
            for user in &users {
                let balance = session.balance(*user, asset)?;
                available += balance.0;
                held += balance.1;
            }
            println!("sum: {symbol} available {available}, held {held}, of users {users:?}");
        }
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let mut market = Market::new(Arguments::parse())?;
    loop {
        match market.run() {
            Err(error) if error.is::<Lost>() => {
                eprintln!("{error}; connecting again");
                thread::sleep(RETRY);
            }
            ended => {
                market.service.map_or(Ok(()), Service::stop)?;
                return ended;
            }
        }
    }
}
