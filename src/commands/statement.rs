//! `ubscore statement`: the movements on one user's accounts in both stores, with or without a
//! running service. It changes nothing.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;

use super::configured::load_config;
use super::output::{HungUp, json};
use crate::audit::statement::{Balances, Logs, Movement, Part, Statement, read_log, statement};
use crate::audit::verify::Stores;
use crate::cli::{StatementArgs, StatementFormat};
use crate::exit::Exit;
use crate::postgres::movements;
use crate::stores::{Target, with_stores};
use domain::account::UserId;
use domain::amount::signed_text;
use domain::asset::{Asset, AssetId, Catalog};

/// Prints the statement. Notes and mismatches go to stderr.
///
/// # Errors
/// A store cannot be read, or the output cannot be written.
pub fn run(args: &StatementArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let config = load_config(&args.stores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let work = async |stores: Stores, target: &Target| read(args, stores, target).await;
    let read = runtime.context("start")?.block_on(with_stores(config, work));
    let (statement, catalog) = read?;
    let mut out = BufWriter::new(out);
    match print(args, &statement, &catalog, &mut out).and_then(|()| Ok(out.flush()?)) {
        Err(error) if !HungUp::is_cause_of(&error) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if statement.between(Timestamp::MIN, Timestamp::MAX).movements.is_empty() {
        let user = args.user;
        writeln!(io::stderr(), "note: neither store has a movement of user {user}").ok();
    }
    for mismatch in &statement.mismatches {
        // If stderr is closed, the exit code remains.
        writeln!(io::stderr(), "mismatch: user {}, {mismatch}", args.user).ok();
    }
    Ok(if statement.mismatches.is_empty() { Exit::Done } else { Exit::Failed })
}

async fn read(
    args: &StatementArgs,
    stores: Stores,
    target: &Target,
) -> anyhow::Result<(Statement, Arc<Catalog>)> {
    let user = UserId::new(args.user).context("user ids are 1..=2^63-1")?;
    let catalog = stores.catalog.load_full();
    if let Some(symbol) = &args.asset {
        anyhow::ensure!(catalog.by_symbol(symbol).is_some(), "there is no asset {symbol}");
    }
    // PostgreSQL first: then the log holds every record that it claims.
    let movements = movements::read(&target.address, &target.limits, &stores.catalog, user);
    let movements = movements.await.context("read PostgreSQL")?;
    let Stores { log, snapshots, .. } = &stores;
    let logs = Logs { log, snapshots, archive: args.archive.as_deref() };
    let logged = tokio::task::block_in_place(|| read_log(logs, user));
    let logged = logged.context("read the log")?;
    Ok((statement(movements, logged, &catalog), catalog))
}

fn print(
    args: &StatementArgs,
    statement: &Statement,
    catalog: &Catalog,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (since, until) =
        (args.since.unwrap_or(Timestamp::MIN), args.until.unwrap_or(Timestamp::MAX));
    let Part { movements, opening, closing } = statement.between(since, until);
    let wanted = |id: AssetId| {
        let asset = catalog.by_id(id).context("an asset is in no catalog")?;
        let wanted = args.asset.as_ref().is_none_or(|symbol| *symbol == asset.symbol);
        anyhow::Ok(wanted.then_some(asset))
    };
    let mut lines = Vec::with_capacity(movements.len());
    for movement in movements.into_iter().filter(|one| args.holds || !one.only_holds()) {
        if let Some(asset) = wanted(movement.asset)? {
            lines.push((movement, asset));
        }
    }
    let mut sums = Vec::new();
    for (id, closing) in &closing {
        if let Some(asset) = wanted(*id)? {
            sums.push((asset, balance(&opening, *id), *closing));
        }
    }
    match args.format {
        StatementFormat::Text => print_text(args, statement, &lines, &sums, out),
        StatementFormat::Csv => print_csv(&lines, out),
        StatementFormat::Json => print_json(statement, &lines, &sums, out),
    }
}

fn balance(balances: &BTreeMap<AssetId, Balances>, asset: AssetId) -> Balances {
    balances.get(&asset).copied().unwrap_or_default()
}

fn print_text(
    args: &StatementArgs,
    statement: &Statement,
    lines: &[(&Movement, &Asset)],
    sums: &[(&Asset, Balances, Balances)],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for (movement, asset) in lines {
        let Movement { at, account, effect, held, balance, reference, .. } = movement;
        let held = match held {
            0 => String::new(),
            held => format!(" held {}", signed_text(*held, asset.precision)),
        };
        writeln!(
            out,
            "{at:.6} {:<7} {:<12} {:<8} {:>20} {:>20} {}{held}",
            account.account(),
            movement.name(),
            asset.symbol,
            signed_text(*effect, asset.precision),
            signed_text(*balance, asset.precision),
            // Escaped, so that it cannot control a terminal.
            reference.escape_debug(),
        )?;
    }
    for (asset, opening, closing) in sums {
        let say = |Balances { funding, spot, in_flight }: &Balances| {
            let [funding, spot, in_flight] =
                [funding, spot, in_flight].map(|units| signed_text(*units, asset.precision));
            format!("funding={funding} spot={spot} in_flight={in_flight}")
        };
        writeln!(out, "{:<8} opening {}", asset.symbol, say(opening))?;
        writeln!(out, "{:<8} closing {}", asset.symbol, say(closing))?;
    }
    let word = if statement.mismatches.is_empty() { "ok" } else { "mismatch" };
    let (user, count, newer) = (args.user, lines.len(), statement.newer);
    writeln!(out, "{word} user={user} movements={count} newer_on_spot={newer}")?;
    Ok(())
}

/// A movement as one line of CSV, or with its kind as one JSON object.
#[derive(Serialize)]
struct Row<'a> {
    at: String,
    account: &'static str,
    op: &'static str,
    asset: &'a str,
    /// Signed decimal text.
    amount: String,
    /// Balance after the movement, with what is held, decimal text.
    balance: String,
    /// The transfer's req_id, the external operation's idem_key, or the name of a posting.
    reference: &'a str,
    log_sequence: Option<u64>,
    /// The change of what is held, signed decimal text.
    held: String,
}

impl<'a> Row<'a> {
    fn of(movement: &'a Movement, asset: &'a Asset) -> Row<'a> {
        Row {
            at: format!("{:.9}", movement.at),
            account: movement.account.account(),
            op: movement.name(),
            asset: &asset.symbol,
            amount: signed_text(movement.effect, asset.precision),
            balance: signed_text(movement.balance, asset.precision),
            reference: &movement.reference,
            log_sequence: movement.sequence,
            held: signed_text(movement.held, asset.precision),
        }
    }
}

fn print_csv(lines: &[(&Movement, &Asset)], out: &mut impl Write) -> anyhow::Result<()> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(out);
    let mut written = || -> Result<(), csv::Error> {
        // Also without any movement.
        csv.write_record([
            "at",
            "account",
            "op",
            "asset",
            "amount",
            "balance",
            "reference",
            "log_sequence",
            "held",
        ])?;
        for (movement, asset) in lines {
            csv.serialize(Row::of(movement, asset))?;
        }
        Ok(csv.flush()?)
    };
    written().map_err(|error| match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        kind => anyhow::anyhow!("write CSV: {kind:?}"),
    })
}

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Object<'a> {
    Movement(Row<'a>),
    Balances { asset: &'a str, opening: BalancesObject, closing: BalancesObject },
    End { verdict: &'static str, movements: usize, newer_on_spot: usize, mismatches: &'a [String] },
}

#[derive(Serialize)]
struct BalancesObject {
    funding: String,
    spot: String,
    in_flight: String,
}

impl BalancesObject {
    fn of(balances: &Balances, asset: &Asset) -> BalancesObject {
        let Balances { funding, spot, in_flight } = balances;
        let [funding, spot, in_flight] =
            [funding, spot, in_flight].map(|units| signed_text(*units, asset.precision));
        BalancesObject { funding, spot, in_flight }
    }
}

fn print_json(
    statement: &Statement,
    lines: &[(&Movement, &Asset)],
    sums: &[(&Asset, Balances, Balances)],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for (movement, asset) in lines {
        writeln!(out, "{}", json(&Object::Movement(Row::of(movement, asset))))?;
    }
    for (asset, opening, closing) in sums {
        let (opening, closing) =
            (BalancesObject::of(opening, asset), BalancesObject::of(closing, asset));
        writeln!(out, "{}", json(&Object::Balances { asset: &asset.symbol, opening, closing }))?;
    }
    let verdict = if statement.mismatches.is_empty() { "ok" } else { "mismatch" };
    let (movements, newer_on_spot) = (lines.len(), statement.newer);
    let mismatches = &statement.mismatches;
    let end = Object::End { verdict, movements, newer_on_spot, mismatches };
    writeln!(out, "{}", json(&end))?;
    Ok(())
}
