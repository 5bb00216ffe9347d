//! The requests of users: lines of the standard input, or random ones.

use std::io;
use std::thread;

use anyhow::{Context, bail, ensure};
use clap::Args;
use crossbeam::channel::{Receiver, bounded, never};

use crate::orders::{Book, Order};

/// Random requests.
#[derive(Args)]
pub(crate) struct Random {
    /// Makes so many requests instead of reading them.
    #[arg(long)]
    random: Option<u64>,
    /// The seed of these requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Their users.
    #[arg(long, value_delimiter = ',', default_value = "1001,1002")]
    users: Vec<u64>,
}

/// Where the requests of a book come from.
pub(crate) struct Requests {
    /// Lines of the standard input.
    pub(crate) lines: Receiver<String>,
    /// Random requests that are still made, and the state of their generator.
    left: u64,
    state: u64,
    users: Vec<u64>,
    lines_ended: bool,
}

impl Requests {
    /// The random ones, if they are asked for; else the lines.
    pub(crate) fn new(random: &Random) -> Requests {
        let left = random.random.unwrap_or(0);
        let lines_ended = left > 0;
        let lines = if lines_ended { never() } else { read_lines() };
        Requests { lines, left, state: random.seed, users: random.users.clone(), lines_ended }
    }

    /// No line follows.
    pub(crate) fn end_lines(&mut self) {
        self.lines = never();
        self.lines_ended = true;
    }

    /// Whether none follows.
    pub(crate) fn have_ended(&self) -> bool {
        self.lines_ended && self.left == 0
    }

    /// The next random request.
    pub(crate) fn make(&mut self, book: &Book) -> Option<String> {
        self.left = self.left.checked_sub(1)?;
        let (kind, open) = (self.below(10), &book.open);
        if kind < 3 && !open.is_empty() {
            let at = usize::try_from(self.below(open.len() as u64)).expect("an order");
            let order = open.keys().nth(at).expect("an order");
            return Some(match kind {
                0 => format!("reduce {order} {}", 1 + self.below(3)),
                _ => format!("cancel {order}"),
            });
        }
        let side = ["buy", "sell"][usize::from(self.below(2) == 0)];
        let at = usize::try_from(self.below(self.users.len() as u64)).expect("a user");
        let (user, price, lots) = (self.users[at], 49_990 + self.below(20), 1 + self.below(9));
        let ioc = if self.below(5) == 0 { " ioc" } else { "" };
        Some(format!("{side} {user} {price} {lots}{ioc}"))
    }

    /// Knuth's generator. Its upper bits are good.
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % bound
    }
}

/// Takes a request into the book.
pub(crate) fn take(line: &str, book: &mut Book) -> anyhow::Result<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().context("a number is wanted");
    match words[..] {
        [side @ ("buy" | "sell"), user, price, lots, ref rest @ ..] => {
            ensure!(matches!(rest, [] | ["ioc"]), "ioc is the only option");
            let [user, price, lots] = [number(user)?, number(price)?, number(lots)?];
            let (is_buy, ioc) = (side == "buy", !rest.is_empty());
            book.order(Order { user, is_buy, price, lots, ioc })
        }
        ["cancel", order] => book.reduce(number(order)?, u64::MAX),
        ["reduce", order, lots] => book.reduce(number(order)?, number(lots)?),
        _ => bail!("no request"),
    }
}

/// The lines of the standard input.
fn read_lines() -> Receiver<String> {
    let (sender, lines) = bounded(1);
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
