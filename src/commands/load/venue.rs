//! `ubscore load --venue`: offers RESERVE and SETTLE over the Unix socket of a running service.
//!
//! A RESERVE sets an amount of one user apart. The SETTLE behind it moves all of it to the next
//! user. At a rate the loop is open, as for transfers. Otherwise it is closed: a number of commands
//! is without an answer at each moment. A latency ends with the durable answer.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::{Buf, BytesMut};
use domain::posting::{ALL, Leg, Place};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::json;
use stream::block::{
    Acknowledge, Answer, BackReason, CloseReason, LegRow, Open, ReadHolds, Reserve, Set,
    TOKEN_BYTES,
};
use stream::frame::cutter;
use stream::message::Message;
use tokio_util::codec::{Decoder, LengthDelimitedCodec};

use super::client::Client;
use super::{Pace, Plan, QUANTILES, histogram};
use crate::cli::LoadArgs;
use crate::clock::Clock;
use crate::format::Format;

/// After so long without a message, Alive is sent.
const ALIVE_AFTER: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ_BYTES: usize = 1 << 16;

/// Offers the commands at each rate, checks the balances, and writes the result to `out`.
///
/// # Errors
/// The socket cannot be reached, the session is refused or ends, or a balance is wrong at the end.
pub(super) async fn offer(
    plan: &Plan,
    mut session: Session,
    rates: &[Option<u64>],
    args: &LoadArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let asset = plan.asset_number(&mut Client::connect(&plan.ops).await?).await?;
    let moved = vec![0; plan.users.len()];
    let mut book = Book { first: session.next, units: plan.units, asset, moved };
    let mut rows = Vec::new();
    for rate in rates {
        rows.push(session.phase(plan, &mut book, *rate, args, clock)?);
    }
    ensure!(session.holds_above(book.first - 1)? == 0, "holds of this load are left");
    let mut client = Client::connect(&plan.host).await?;
    for (user, moved) in plan.users.iter().zip(&book.moved) {
        let now = plan.balances_at_rest(user, &mut client).await?;
        let before = user.before.get().context("not endowed")?;
        let wanted = (before.0, before.1.checked_add_signed(*moved).context("below zero")?);
        ensure!(now == wanted, "user {}: Funding and Spot hold {now:?}, not {wanted:?}", user.id);
    }
    match args.format {
        Format::Text => table(&rows, out),
        Format::Json => Ok(writeln!(out, "{}", json!({ "rows": rows }))?),
    }
}

/// The commands of a load, by their numbers: a RESERVE, then its SETTLE.
struct Book {
    /// The number of the first RESERVE.
    first: u64,
    units: u64,
    asset: u32,
    /// Units that each user has gained or lost.
    moved: Vec<i128>,
}

impl Book {
    /// The places of payer and payee among the users, and whether the number is a SETTLE.
    fn parties(&self, number: u64) -> (usize, usize, bool) {
        let (behind, count) = (number - self.first, self.moved.len());
        let round = usize::try_from(behind / 2).expect("64 bits");
        (round % count, (round + 1) % count, behind % 2 == 1)
    }

    fn append(&self, plan: &Plan, number: u64, out: &mut BytesMut) {
        let (payer, payee, is_settle) = self.parties(number);
        if is_settle {
            let to = Place::Available(plan.users[payee].id);
            let leg = Leg { from: Place::Hold(number - 1), to, asset: self.asset, amount: ALL };
            let set = Set { number: number.into(), reference: number.into() };
            Message::Settle(&set, &[LegRow::from(leg)]).append_to(out);
        } else {
            let reserve = Reserve {
                number: number.into(),
                reference: number.into(),
                user: plan.users[payer].id.into(),
                amount: self.units.into(),
                onto: 0.into(),
                asset: self.asset.into(),
            };
            Message::Reserve(&reserve).append_to(out);
        }
    }

    fn settled(&mut self, number: u64) {
        let (payer, payee, is_settle) = self.parties(number);
        if is_settle {
            self.moved[payer] -= i128::from(self.units);
            self.moved[payee] += i128::from(self.units);
        }
    }
}

/// The results at one rate.
#[derive(Debug, Serialize)]
struct Measured {
    /// Commands per second; `None`: closed loop.
    offered: Option<u64>,
    /// Begin and end of the measurement, ns since the Unix epoch.
    measured_unix_ns: (u64, u64),
    achieved: u64,
    done: u64,
    refused: u64,
    /// From the planned time to the durable answer, ns.
    latency_ns: Vec<(&'static str, u64)>,
    /// Delay of the sender itself, p99.9, ns.
    sender_late_ns: u64,
}

/// The counts of one rate so far.
struct Seen {
    pace: Pace,
    latencies: Histogram<u64>,
    late: Histogram<u64>,
    done: u64,
    refused: u64,
}

/// An open session of the venue.
pub(super) struct Session {
    stream: UnixStream,
    cutter: LengthDelimitedCodec,
    /// For reads: their bytes go on to `input`.
    buffer: Vec<u8>,
    input: BytesMut,
    output: BytesMut,
    /// The number of the next command.
    next: u64,
    /// Planned times of the commands without an answer, in the order of their numbers.
    waiting: VecDeque<Instant>,
    /// The most commands without an answer: half of the venue's window, so that it is never full.
    waiting_max: usize,
    acknowledged: u64,
    written: Instant,
}

impl Session {
    /// Opens a session with the next epoch.
    ///
    /// # Errors
    /// No server listens on the socket, or it refuses the session.
    pub(super) fn open(socket: &Path, venue: u32, token: &str) -> anyhow::Result<Session> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("connect to {}", socket.display()))?;
        stream.set_nonblocking(true)?;
        ensure!(token.len() <= TOKEN_BYTES, "the token is too long");
        let mut field = [0; TOKEN_BYTES];
        field[..token.len()].copy_from_slice(token.as_bytes());
        let mut session = Session {
            stream,
            cutter: cutter(),
            buffer: vec![0; READ_BYTES],
            input: BytesMut::new(),
            output: BytesMut::new(),
            next: 0,
            waiting: VecDeque::new(),
            waiting_max: 0,
            acknowledged: 0,
            written: Instant::now(),
        };
        let open = Open { epoch: 0.into(), told: 0.into(), venue: venue.into(), token: field };
        Message::Open(&open).append_to(&mut session.output);
        let first = session.hear().with_context(|| {
            format!("open venue {venue}; next: ubscore venue list, and end its other session")
        })?;
        let Ok(Message::Opened(opened)) = Message::read(&first) else {
            bail!("another message came instead of Opened");
        };
        session.next = opened.last.get() + 1;
        session.waiting_max = usize::try_from(opened.window.get() / 2)?.max(1);
        session.acknowledge();
        Ok(session)
    }

    /// The load at one rate.
    fn phase(
        &mut self,
        plan: &Plan,
        book: &mut Book,
        rate: Option<u64>,
        args: &LoadArgs,
        clock: &impl Clock,
    ) -> anyhow::Result<Measured> {
        let pace = Pace::new(rate, args.warm_up, args.duration);
        let (latencies, late) = (histogram(), histogram());
        let mut seen = Seen { pace, latencies, late, done: 0, refused: 0 };
        let wanted = usize::try_from(args.window)?;
        let waiting_max = if rate.is_none() { wanted } else { usize::MAX }.min(self.waiting_max);
        let mut sent = 0;
        loop {
            let now = Instant::now();
            let planned = |sent| match seen.pace.interval {
                Some(interval) => seen.pace.planned(interval, sent),
                None => now,
            };
            // A RESERVE is never the last one: its SETTLE follows.
            let has_ended = |sent: u64| match seen.pace.interval {
                Some(_) => sent >= seen.pace.total.next_multiple_of(2),
                None => now >= seen.pace.until && sent.is_multiple_of(2),
            };
            while !has_ended(sent) && self.waiting.len() < waiting_max && planned(sent) <= now {
                book.append(plan, self.next, &mut self.output);
                self.waiting.push_back(planned(sent));
                seen.late.saturating_record(ns(now - planned(sent)));
                self.next += 1;
                sent += 1;
            }
            if has_ended(sent) && self.waiting.is_empty() {
                break;
            }
            let has_room = !has_ended(sent) && self.waiting.len() < waiting_max;
            let due = if has_room { planned(sent) } else { now + ALIVE_AFTER };
            self.exchange(due)?;
            self.take_answers(book, &mut seen)?;
        }
        self.acknowledge();
        let (took, until_ns) = (seen.pace.measured(), clock.now_ns());
        let quantile = |(name, q)| (name, seen.latencies.value_at_quantile(q));
        Ok(Measured {
            offered: rate,
            measured_unix_ns: (until_ns.saturating_sub(ns(took)), until_ns),
            achieved: u64::try_from(
                u128::from(seen.done) * 1_000_000_000 / took.as_nanos().max(1),
            )?,
            done: seen.done,
            refused: seen.refused,
            latency_ns: QUANTILES.into_iter().map(quantile).collect(),
            sender_late_ns: seen.late.value_at_quantile(0.999),
        })
    }

    fn take_answers(&mut self, book: &mut Book, seen: &mut Seen) -> anyhow::Result<()> {
        let now = Instant::now();
        while let Some(frame) = self.frame()? {
            let Ok(Message::Answer(answer)) = Message::read(&frame) else {
                bail!("another message came instead of an answer");
            };
            let (number, planned) = self.answered(answer)?;
            let success = answer.code.get() == 0;
            if success {
                book.settled(number);
            }
            if seen.pace.counts(planned) {
                *(if success { &mut seen.done } else { &mut seen.refused }) += 1;
                seen.latencies.saturating_record(ns(now - planned));
            }
        }
        let answered = self.next - self.waiting.len() as u64 - 1;
        if answered - self.acknowledged > self.waiting_max as u64 / 2 {
            self.acknowledge();
        }
        Ok(())
    }

    /// The number and the planned time of an answer's command: answers come in order.
    fn answered(&mut self, answer: &Answer) -> anyhow::Result<(u64, Instant)> {
        let oldest = self.next - self.waiting.len() as u64;
        let planned = self.waiting.pop_front().context("an answer came without a command")?;
        let number = answer.number.get();
        ensure!(number == oldest, "answer {number} came instead of {oldest}");
        Ok((number, planned))
    }

    /// Acknowledges all answers.
    fn acknowledge(&mut self) {
        self.acknowledged = self.next - self.waiting.len() as u64 - 1;
        let number = self.acknowledged.into();
        Message::Acknowledge(&Acknowledge { number }).append_to(&mut self.output);
    }

    /// The number of holds with higher numbers, or of the first ones.
    fn holds_above(&mut self, number: u64) -> anyhow::Result<usize> {
        Message::ReadHolds(&ReadHolds { after: number.into() }).append_to(&mut self.output);
        match Message::read(&self.hear()?) {
            Ok(Message::Holds(_, rows)) => Ok(rows.len()),
            _ => bail!("another message came instead of Holds"),
        }
    }

    /// Waits for the next message.
    fn hear(&mut self) -> anyhow::Result<BytesMut> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            self.exchange(Instant::now() + ALIVE_AFTER)?;
        }
    }

    /// The next message that has been read, without Alive.
    fn frame(&mut self) -> anyhow::Result<Option<BytesMut>> {
        while let Some(frame) = self.cutter.decode(&mut self.input)? {
            match Message::read(&frame) {
                Ok(Message::Alive) => {}
                Ok(Message::Close(close)) => {
                    let reason = CloseReason::from_number(close.reason).map(CloseReason::name);
                    bail!("the service has ended the session: {}", reason.unwrap_or("unknown"));
                }
                Ok(Message::Back(back)) => {
                    let reason = BackReason::from_number(back.reason).map(BackReason::name);
                    let number = back.number.get();
                    bail!("number {number} was not decided: {}", reason.unwrap_or("unknown"));
                }
                _ => return Ok(Some(frame)),
            }
        }
        Ok(None)
    }

    /// Writes and reads as much as the socket takes and has. Waits until it has something, until
    /// it takes the rest, or until `due`.
    fn exchange(&mut self, due: Instant) -> anyhow::Result<()> {
        if self.output.is_empty() && self.written.elapsed() >= ALIVE_AFTER {
            Message::Alive.append_to(&mut self.output);
        }
        self.write()?;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.output.is_empty());
        let left = due.saturating_duration_since(Instant::now()).min(ALIVE_AFTER);
        let timeout = Timespec::try_from(left).context("a time")?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for the socket"),
        }
        self.write()?;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => bail!("the service has ended the connection"),
            Ok(count) => self.input.extend_from_slice(&self.buffer[..count]),
            Err(error) if is_later(&error) => {}
            Err(error) => return Err(error).context("read from the socket"),
        }
        Ok(())
    }

    fn write(&mut self) -> anyhow::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => {
                    self.output.advance(count);
                    self.written = Instant::now();
                }
                Err(error) if is_later(&error) => break,
                // The reason is in the last message, which is read next.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.output.clear(),
                Err(error) => return Err(error).context("write to the socket"),
            }
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn table(rows: &[Measured], out: &mut impl Write) -> anyhow::Result<()> {
    write!(out, "{:>10}{:>10}", "offered/s", "done/s")?;
    for (name, _) in QUANTILES {
        write!(out, "{:>11}", format!("{name} us"))?;
    }
    writeln!(out, "{:>11}{:>9}{:>12}", "done", "refused", "late p99.9")?;
    let us = |ns: u64| format!("{}.{}", ns / 1_000, ns % 1_000 / 100);
    for row in rows {
        let offered = row.offered.map_or("most".to_owned(), |rate| rate.to_string());
        write!(out, "{offered:>10}{:>10}", row.achieved)?;
        for (_, ns) in &row.latency_ns {
            write!(out, "{:>11}", us(*ns))?;
        }
        let Measured { done, refused, sender_late_ns, .. } = row;
        writeln!(out, "{done:>11}{refused:>9}{:>12}", us(*sender_late_ns))?;
    }
    Ok(writeln!(out, "balances: equal to the answers, and nothing is held")?)
}
