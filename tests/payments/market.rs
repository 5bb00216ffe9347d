//! A venue among the crowd: it reserves the money of the same users, trades it, and releases it.
//! It sends again each command without an answer, and no kill takes an answer back.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use domain::code::Code;
use domain::posting::{ALL, Leg, Place};
use serde_json::{Value, json};
use stream::block::{Acknowledge, CloseReason, LegRow, Release, Reserve, Set};
use stream::message::Message;

use super::{ASSETS, MOVERS, signed};
use crate::harness::{PATIENCE, Random, Server, eventually, text};
use crate::stream::client::{BTC, Heard, USDT, Venue, open, venue_token};

const VENUE: u32 = 7;
/// The assets' numbers, in the order of [`ASSETS`].
const NUMBERS: [u32; 2] = [USDT, BTC];
/// Commands that wait for their answers at once.
const BURST: usize = 6;
/// Open holds, at which it ends some.
const HOLDS_MAX: usize = 40;

/// A hold that its RESERVE has made, less what commands without an answer take.
#[derive(Clone, Copy, Debug)]
struct Hold {
    number: u64,
    user: u64,
    /// Into [`ASSETS`].
    asset: usize,
    units: u64,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Reserve(Hold),
    /// The two holds with the amounts that each one pays to the other's owner.
    Trade([Hold; 2]),
    Release(Hold),
}

/// See the module.
pub(super) struct Market {
    socket: PathBuf,
    /// Without an answer, by number.
    sent: VecDeque<(u64, Command)>,
    next: u64,
    told: u64,
    holds: Vec<Hold>,
    /// Brought less taken, by user and asset.
    traded: BTreeMap<(u64, usize), i128>,
    pub(super) trades: usize,
}

/// The session has ended: another one goes on.
struct Broken;

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken
    }
}

impl Market {
    pub(super) fn new(socket: &Path) -> Market {
        Market {
            socket: socket.to_owned(),
            sent: VecDeque::new(),
            next: 1,
            told: 0,
            holds: Vec::new(),
            traded: BTreeMap::new(),
            trades: 0,
        }
    }

    /// Registers the venue.
    pub(super) fn register(server: &Server) {
        let body = json!({"name": "market", "reason": "a test"});
        let reply = server.admin("PUT", &format!("/admin/v1/venues/{VENUE}"), &body);
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// All that its trades have brought to a user less all that they have taken, smallest units.
    pub(super) fn traded(&self, user: u64, asset: &str) -> i128 {
        let asset = ASSETS.iter().position(|symbol| *symbol == asset).expect("one of them");
        self.traded.get(&(user, asset)).copied().unwrap_or(0)
    }

    /// Trades until the server is dead.
    pub(super) fn trade(&mut self, random: &Random, dead: &AtomicBool) {
        while !dead.load(Ordering::Relaxed) {
            let Ok(mut venue) = self.begin() else {
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            while !dead.load(Ordering::Relaxed) && self.burst(&mut venue, random).is_ok() {
                // The crowd is the load, and not the market.
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Opens a session and has everything answered that was sent before.
    fn begin(&mut self) -> Result<Venue, Broken> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut venue = Venue::on(stream);
        let mut output = BytesMut::new();
        let opening = open(VENUE, 0, self.told, &venue_token(VENUE));
        Message::Open(&opening).append_to(&mut output);
        venue.stream.write_all(&output)?;
        match hear(&mut venue)? {
            Heard::Opened(begun) => assert!(begun.last >= self.told, "an answer is taken back"),
            other => return ended(&other),
        }
        self.send(&mut venue)?;
        self.answers(&mut venue)?;
        Ok(venue)
    }

    /// Sends everything that waits for an answer.
    fn send(&self, venue: &mut Venue) -> Result<(), Broken> {
        let mut output = BytesMut::new();
        if self.told > 0 {
            let told = Acknowledge { number: self.told.into() };
            Message::Acknowledge(&told).append_to(&mut output);
        }
        for (number, command) in &self.sent {
            command.append_to(*number, &mut output);
        }
        Ok(venue.stream.write_all(&output)?)
    }

    /// Reads until every command has its answer.
    fn answers(&mut self, venue: &mut Venue) -> Result<(), Broken> {
        while let Some((expected, command)) = self.sent.front().copied() {
            match hear(venue)? {
                Heard::Answer { number, code, .. } => {
                    assert_eq!(number, expected, "{command:?}");
                    self.answered(number, command, code);
                }
                other => return ended(&other),
            }
        }
        Ok(())
    }

    fn answered(&mut self, number: u64, command: Command, code: Option<Code>) {
        self.sent.pop_front();
        self.told = number;
        match (command, code) {
            (Command::Reserve(hold), None) => self.holds.push(hold),
            (Command::Reserve(_), Some(Code::InsufficientBalance)) => {}
            (Command::Trade([bid, ask]), None) => {
                self.trades += 1;
                for (from, to) in [(bid, ask), (ask, bid)] {
                    let units = i128::from(from.units);
                    *self.traded.entry((from.user, from.asset)).or_default() -= units;
                    *self.traded.entry((to.user, from.asset)).or_default() += units;
                }
            }
            (Command::Release(_), None) => {}
            // L13: an end is never refused.
            other => panic!("number {number}: {other:?}"),
        }
    }

    /// A few commands, and their answers.
    fn burst(&mut self, venue: &mut Venue, random: &Random) -> Result<(), Broken> {
        for _ in 0..1 + random.below(BURST) {
            let command = self.command(random);
            self.sent.push_back((self.next, command));
            self.next += 1;
        }
        self.send(venue)?;
        self.answers(venue)
    }

    fn command(&mut self, random: &Random) -> Command {
        let full = self.holds.len() >= HOLDS_MAX;
        if self.holds.len() > 2 && (full || random.once_in(3)) {
            let first = random.below(self.holds.len());
            if random.once_in(3) {
                return Command::Release(self.holds.swap_remove(first));
            }
            let second = (first + 1 + random.below(self.holds.len() - 1)) % self.holds.len();
            let parts = [first, second].map(|index| self.part(index, random));
            self.holds.retain(|hold| hold.units > 0);
            return Command::Trade(parts);
        }
        let user = MOVERS[random.below(MOVERS.len())];
        let units = 1 + random.below(30_000_000) as u64;
        Command::Reserve(Hold { number: self.next, user, asset: random.below(2), units })
    }

    /// Takes a part of a hold, or all of it.
    fn part(&mut self, index: usize, random: &Random) -> Hold {
        let hold = &mut self.holds[index];
        let all = usize::try_from(hold.units).expect("small");
        let units = if random.once_in(2) { hold.units } else { 1 + random.below(all) as u64 };
        hold.units -= units;
        Hold { units, ..*hold }
    }

    /// Behind a death, with all transactions at rest: everything that was sent is answered; holds
    /// add up to what users have held; and then they are released.
    pub(super) fn rest(&mut self, server: &Server) {
        let mut venue = eventually("a session of the venue", || self.begin().ok());
        self.assert_held(server);
        while let Some(hold) = self.holds.pop() {
            self.sent.push_back((self.next, Command::Release(hold)));
            self.next += 1;
        }
        let released = self.send(&mut venue).and_then(|()| self.answers(&mut venue));
        assert!(released.is_ok(), "the venue lost its session");
    }

    /// Each hold of the engine's table is one of the venue, and the held part of each balance is
    /// their sum.
    fn assert_held(&self, server: &Server) {
        let mut sums: BTreeMap<(u64, String), i128> = BTreeMap::new();
        for Hold { user, asset, units, .. } in &self.holds {
            *sums.entry((*user, ASSETS[*asset].to_owned())).or_default() += i128::from(*units);
        }
        let mut rows: BTreeMap<(u64, String), i128> = BTreeMap::new();
        let mut cursor = String::new();
        loop {
            let page = server.admin_get(&format!("/admin/v1/holds{cursor}")).json();
            for row in page["holds"].as_array().unwrap_or_else(|| panic!("{page}")) {
                let user = row["user_id"].as_u64().unwrap_or_else(|| panic!("{row}"));
                let asset = text(&row["asset"]).to_owned();
                *rows.entry((user, asset)).or_default() += signed(text(&row["amount"]));
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("?cursor={next}"),
                None => break,
            }
        }
        assert_eq!(rows, sums, "the rows of holds, and those of the venue");
        for user in MOVERS {
            let reply = server.get(user, "/api/v1/balances").json();
            for row in reply["balances"].as_array().expect("a list") {
                let account = (user, text(&row["asset"]).to_owned());
                let frozen = |side: &Value| side["frozen"].as_str().map_or(0, signed);
                let held = sums.get(&account).copied().unwrap_or(0);
                assert_eq!(frozen(&row["spot"]), held, "{user} {row}");
                assert_eq!(frozen(&row["funding"]), 0, "{user} {row}");
            }
        }
    }
}

impl Command {
    fn append_to(self, number: u64, output: &mut BytesMut) {
        match self {
            Command::Reserve(Hold { user, asset, units, .. }) => {
                let reserve = Reserve {
                    number: number.into(),
                    reference: number.into(),
                    user: user.into(),
                    amount: units.into(),
                    onto: 0.into(),
                    asset: NUMBERS[asset].into(),
                };
                Message::Reserve(&reserve).append_to(output);
            }
            Command::Trade([bid, ask]) => {
                let leg = |from: Hold, to: Hold| Leg {
                    from: Place::Hold(from.number),
                    to: Place::Available(to.user),
                    asset: NUMBERS[from.asset],
                    amount: from.units,
                };
                let rows = [leg(bid, ask), leg(ask, bid)].map(LegRow::from);
                let set = Set { number: number.into(), reference: number.into() };
                Message::Settle(&set, &rows).append_to(output);
            }
            Command::Release(hold) => {
                let release = Release {
                    number: number.into(),
                    reference: number.into(),
                    hold: hold.number.into(),
                    amount: ALL.into(),
                };
                Message::Release(&release).append_to(output);
            }
        }
    }
}

/// The next message; the connection may have ended.
fn hear(venue: &mut Venue) -> Result<Heard, Broken> {
    loop {
        match venue.try_hear()? {
            Some(Some(heard)) => return Ok(heard),
            Some(None) => {}
            None => return Err(Broken),
        }
    }
}

/// The session has ended for a reason that a death or a start explains.
fn ended<T>(heard: &Heard) -> Result<T, Broken> {
    match heard {
        Heard::Back { .. } | Heard::Close(CloseReason::Fenced | CloseReason::Stopping) => {
            Err(Broken)
        }
        other => panic!("{other:?}"),
    }
}
