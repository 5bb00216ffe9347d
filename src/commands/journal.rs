//! `ubscore journal`: prints the rows of Funding's journal, also while the service writes them. It
//! changes nothing.
//!
//! A row is one line, and each of its entries is a line below it. Exit codes: 0; 1 for a damaged
//! row, which is printed with its fault; 2 if the rows cannot be read.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, bail};
use serde::Serialize;

use super::configured::load_config;
use super::output::json;
use crate::audit::verify::Stores;
use crate::cli::{JournalCommand, JournalDumpArgs};
use crate::exit::Exit;
use crate::format::Format;
use crate::postgres::connect;
use crate::postgres::flight::entries::Entry;
use crate::postgres::flight::recharged::RechargeChange;
use crate::postgres::journal::{self, Checker, DamagedRow, Fault, JournalRow};
use crate::recharge::{PaymentId, RechargeId};
use crate::stores::{Target, with_stores};
use domain::amount::signed_text;
use domain::asset::{AssetId, Catalog};
use domain::code::Code;
use domain::hold::HoldAct;
use domain::transfer::{Op, State};

/// Rows read by one statement.
const ROWS_PER_READ: usize = 250;

/// Runs the subcommand.
///
/// # Errors
/// The rows cannot be read, or the output cannot be written.
pub fn run(command: &JournalCommand, out: &mut impl Write) -> anyhow::Result<Exit> {
    let JournalCommand::Dump(args) = command;
    let config = load_config(&args.stores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let mut out = BufWriter::new(out);
    let work = async |stores: Stores, target: &Target| {
        let exit = dump(args, &stores.catalog.load(), target, &mut out).await?;
        out.flush()?;
        Ok(exit)
    };
    runtime.context("start")?.block_on(with_stores(config, work))
}

/// Prints the rows of every wanted shard.
async fn dump(
    args: &JournalDumpArgs,
    catalog: &Catalog,
    target: &Target,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let client = connect(&target.address, &target.limits).await.context("connect")?;
    let mut shards = journal::shards(&client).await.context("read the journal")?;
    shards.retain(|shard, _| args.shard.is_none_or(|wanted| wanted == *shard));
    if let (Some(shard), true) = (args.shard, shards.is_empty()) {
        bail!("the journal has no shard {shard}");
    }
    let (mut left, mut exit) = (args.limit.unwrap_or(u64::MAX), Exit::Done);
    for (shard, (first, _)) in shards {
        // Nothing is known of the row before the first one: older rows may have been deleted.
        let mut checker = Checker::behind(shard, args.from.unwrap_or(first).max(first).max(1) - 1);
        loop {
            let rows = journal::page(&client, shard, checker.flight() + 1, ROWS_PER_READ).await;
            let rows = rows.context("read the journal")?;
            let next = rows.first().map_or(0, |row| row.flight);
            if next > checker.flight() + 1 {
                // A running service deletes old rows.
                let now = journal::shards(&client).await.context("read the journal")?;
                let first = now.get(&shard).map_or(0, |(first, _)| *first);
                if first > checker.flight() + 1 {
                    checker = Checker::behind(shard, first.min(next) - 1);
                }
            }
            for row in rows.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                left -= 1;
                if print(args.format, shard, row, &mut checker, catalog, out)? {
                    exit = Exit::Failed;
                }
            }
            if left == 0 || rows.len() < ROWS_PER_READ {
                break;
            }
        }
    }
    Ok(exit)
}

/// A row as one line of JSON. Ids of events are text, because they are above 2^53.
#[derive(Serialize)]
struct Object {
    shard: u32,
    flight: u64,
    incarnation: i64,
    attempt: i64,
    at: String,
    durable: i64,
    open_from: String,
    event_first: String,
    event_count: i64,
    entries: Vec<Line>,
    /// The faults of the row, and of the missing ones before it.
    damaged: Vec<String>,
}

/// An entry.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Passed {
        order_number: String,
        user_id: u64,
        states: Vec<&'static str>,
        event_id: String,
    },
    Posted {
        order_number: String,
        op: &'static str,
        user_id: u64,
        asset: String,
        available: String,
        frozen: String,
        version: u64,
        code: Option<&'static str>,
    },
    Held {
        order_number: String,
        hold: String,
        act: &'static str,
        user_id: u64,
        asset: String,
        available: String,
        frozen: String,
        version: u64,
        code: Option<&'static str>,
    },
    Recharged {
        order_number: String,
        user_id: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        recharge_id: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payment_id: Option<String>,
        change: &'static str,
        event_id: String,
    },
}

/// Prints the next row of a shard. Returns whether it is damaged, or rows before it are missing.
fn print(
    format: Format,
    shard: u32,
    row: &JournalRow,
    checker: &mut Checker,
    catalog: &Catalog,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let mut faults = Vec::new();
    let mut checked = checker.next(row);
    if let Err(DamagedRow { fault: hole @ Fault::Hole { .. }, .. }) = &checked {
        faults.push(hole.to_string());
        // The row itself may be whole.
        checker.skip_to(row.flight);
        checked = checker.next(row);
    }
    if let Err(DamagedRow { fault, .. }) = &checked {
        faults.push(fault.to_string());
        checker.precede(row);
    }
    let lines = lines(row, checked.as_deref().unwrap_or_default(), catalog);
    let is_damaged = !faults.is_empty();
    let JournalRow { flight, incarnation, attempt, at, durable, .. } = row;
    let JournalRow { open_from, event_first, event_count, .. } = row;
    if format == Format::Json {
        let object = Object {
            shard,
            flight: *flight,
            incarnation: *incarnation,
            attempt: *attempt,
            at: format!("{at:.6}"),
            durable: *durable,
            open_from: open_from.to_string(),
            event_first: event_first.to_string(),
            event_count: *event_count,
            entries: lines,
            damaged: faults,
        };
        writeln!(out, "{}", json(&object))?;
        return Ok(is_damaged);
    }
    writeln!(
        out,
        "shard {shard} flight {flight} {at:.6} incarnation {incarnation} attempt {attempt} \
         durable {durable} open_from {open_from} event_first {event_first} events {event_count}"
    )?;
    for line in lines {
        print_line(line, out)?;
    }
    for fault in faults {
        writeln!(out, "  damaged: {fault}")?;
    }
    Ok(is_damaged)
}

/// Prints one entry.
fn print_line(line: Line, out: &mut impl Write) -> io::Result<()> {
    match line {
        Line::Passed { order_number, user_id, states, event_id } => writeln!(
            out,
            "  {order_number} user {user_id} passed {} event {event_id}",
            states.join(",")
        )?,
        Line::Held {
            order_number,
            hold,
            act,
            user_id,
            asset,
            available,
            frozen,
            version,
            code,
        } => {
            let code = code.map_or(String::new(), |code| format!(" refused {code}"));
            writeln!(
                out,
                "  {order_number} user {user_id} hold {hold} {act} {asset} available {available} \
                 frozen {frozen} version {version}{code}"
            )?;
        }
        Line::Recharged { order_number, user_id, recharge_id, payment_id, change, event_id } => {
            let names = [recharge_id, payment_id].into_iter().flatten();
            let names: Vec<String> = names.collect();
            let names = names.join(" ");
            writeln!(
                out,
                "  {order_number} user {user_id} recharge {names} {change} event {event_id}"
            )?;
        }
        Line::Posted { order_number, op, user_id, asset, available, frozen, version, code } => {
            let code = code.map_or(String::new(), |code| format!(" refused {code}"));
            writeln!(
                out,
                "  {order_number} user {user_id} {op} {asset} available {available} \
                 frozen {frozen} version {version}{code}"
            )?;
        }
    }
    Ok(())
}

/// Entries with names, and amounts in decimal. An asset that the catalog does not have is `#` and
/// its number, and its amounts are smallest units and `u`.
fn lines(row: &JournalRow, entries: &[Entry], catalog: &Catalog) -> Vec<Line> {
    let mut event = row.event_first;
    let mut line = |entry: &Entry| {
        let (order_number, user_id) = (entry.order_number().to_string(), entry.user());
        let user_id = user_id.expect("decoded").number();
        match entry {
            Entry::Passed { states, .. } => {
                let names = states.iter().filter_map(|state| State::from_number(*state));
                let states = names.map(State::name).collect();
                let event_id = event.to_string();
                event += 1;
                Line::Passed { order_number, user_id, states, event_id }
            }
            Entry::Posted { op, asset, available, frozen, version, code, .. } => Line::Posted {
                order_number,
                op: Op::from_number(*op).expect("decoded").name(),
                user_id,
                asset: symbol(*asset, catalog),
                available: amount(*available, *asset, catalog),
                frozen: amount(*frozen, *asset, catalog),
                version: *version,
                code: code.and_then(Code::from_number).map(Code::name),
            },
            Entry::Recharged { recharge, payment, change, .. } => {
                let event_id = event.to_string();
                event += 1;
                Line::Recharged {
                    order_number,
                    user_id,
                    recharge_id: RechargeId::new(*recharge).map(|id| id.to_string()),
                    payment_id: PaymentId::new(*payment).map(|id| id.to_string()),
                    change: RechargeChange::name_of(*change).expect("decoded"),
                    event_id,
                }
            }
            Entry::Held { key, act, asset, available, frozen, version, code, .. } => Line::Held {
                order_number,
                hold: key.clone(),
                act: HoldAct::name_of(*act).expect("decoded"),
                user_id,
                asset: symbol(*asset, catalog),
                available: amount(*available, *asset, catalog),
                frozen: amount(*frozen, *asset, catalog),
                version: *version,
                code: code.and_then(Code::from_number).map(Code::name),
            },
        }
    };
    entries.iter().map(&mut line).collect()
}

/// The symbol of an asset; `#` and its number if the catalog does not have it.
fn symbol(asset: u32, catalog: &Catalog) -> String {
    let known = catalog.by_id(AssetId(asset));
    known.map_or_else(|| format!("#{asset}"), |known| known.symbol.clone())
}

/// Smallest units as decimal text; with `u` if the catalog does not have the asset.
fn amount(units: i128, asset: u32, catalog: &Catalog) -> String {
    match catalog.by_id(AssetId(asset)) {
        Some(known) => signed_text(units, known.precision),
        None => format!("{units}u"),
    }
}
