//! `ubscore repair`: restores transfers that PostgreSQL has lost, as far as the log proves them,
//! and decisions that a cut of the log has lost, as far as PostgreSQL proves them.

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use engine::ledger::Answer;
use engine::ring::{Overloaded, Pending};
use engine::{Closed, Engine, Handle};
use serde_json::json;
use wal::Identity;

use super::configured::load_config;
use crate::approval::Action;
use crate::audit::halt;
use crate::audit::redecision::PlanStep;
use crate::audit::repair::{Plan, plan};
use crate::audit::verify::Stores;
use crate::cli::RepairArgs;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::crash;
use crate::data_dir;
use crate::exit::Exit;
use crate::format::Format;
use crate::http::auth::{Role, Verifier};
use crate::postgres;
use crate::postgres::adopt::Asked;
use crate::postgres::recover;
use crate::postgres::repair_writer::external::ExternalRepair;
use crate::postgres::repair_writer::transaction::TransactionRepair;
use crate::postgres::repair_writer::{
    Author, CutRepair, Fates, Repaired, Repairs, carry_out, fence, refuse_other_cause, renumber,
};
use crate::stores::{Target, with_stores};

/// The longest wait of a record for room in the log.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// The operator's next step while venues have not sent again.
const VENUES_NEXT: &str = "ubscore repair --apply decides the credits again; then start, let every venue send again, \
                           stop, and run it again: the debits follow";
/// Between two tries.
const ROOM_PAUSE: Duration = Duration::from_millis(5);

/// Prints the plan of a repair, or carries it out and prints its result; one line each.
///
/// # Errors
/// The repair cannot run, or is refused.
pub fn run(args: &RepairArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    #[cfg(feature = "crash")]
    crash::arm()?;
    let config = load_config(&args.stores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let work = async |stores: Stores, target: &Target| repair(args, stores, target, out).await;
    let left = runtime.context("start")?.block_on(with_stores(config, work))?;
    Ok(if left == 0 { Exit::Done } else { Exit::Failed })
}

/// Returns how much is left.
async fn repair(
    args: &RepairArgs,
    stores: Stores,
    target: &Target,
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let tokens = (args.token_file.as_deref(), args.approver_token_file.as_deref());
    let actor = actor("ubscore repair", args.apply, tokens, &target.config)?;
    if args.apply {
        refuse_begun(target).await?;
    }
    let author = args.reason.as_deref().map(|reason| Author { actor: &actor, reason });
    let mut closed = author.map(|_| open_log(target)).transpose()?;
    let lost_flights = target.lost_flights().await?;
    let mut planned = plan(stores.again()).await.context("compare the two stores")?;
    let catalog = stores.catalog.load_full();
    let mut say = |word: &str, what: &dyn Display| {
        let what = catalog.name_assets(&what.to_string());
        match args.format {
            Format::Text => writeln!(out, "{word:<8} {what}"),
            Format::Json => writeln!(out, "{}", json!({"kind": word, "what": what})),
        }
    };
    let (mut count, mut outside) = (planned.transfers(), planned.externals.len());
    let mut by_name = planned.by_name();
    let (word, verb) = if author.is_some() { ("repaired", "done") } else { ("planned", "would") };
    if let Some(behind) = &planned.behind {
        let incarnation = planned.incarnation;
        say(verb, &format_args!("begin anew behind incarnation {incarnation}: {behind}"))?;
    }
    for damaged in &planned.damaged {
        say(verb, &format_args!("begin the totals of the audit anew: {damaged}"))?;
    }
    let (mut left, mut lets_venues_send) = (Vec::new(), false);
    match (author, closed.as_ref().and_then(Closed::identity)) {
        (Some(author), Some(log)) => {
            let write_postgres = planned.behind.is_some()
                || !planned.damaged.is_empty()
                || !planned.repairs.is_empty()
                || !planned.externals.is_empty()
                || !planned.transactions.is_empty();
            let restore =
                !planned.steps.is_empty() || !planned.renumberings.is_empty() || planned.open_cut;
            let latest = mark_recharges(target, &planned, &lost_flights).await?;
            if write_postgres {
                let Target { address, limits, .. } = target;
                let (catalog, repairs) = (stores.catalog.load(), &planned.repairs);
                let externals = &planned.externals;
                let transactions = &planned.transactions;
                crash::point("repair_before_rows");
                let all = Repairs { transfers: repairs, externals, transactions };
                let done = carry_out(address, limits, &catalog, log, latest, all, author).await;
                let done = done.context("write PostgreSQL")?;
                crash::point("repair_after_rows");
                let failed = print_fates(&planned, &done, verb, &mut say)?;
                (count, outside) = (count - failed[0], outside - failed[1]);
                by_name -= failed[2];
            }
            if restore {
                let closed = closed.take().context("it was opened above")?;
                let opened = (closed, log);
                let although = args.although_halted;
                let restored =
                    restore_log(&stores, target, opened, latest, author, although).await?;
                print_restored(&restored, verb, &mut say)?;
                lets_venues_send = restored.1.is_some();
            }
            if write_postgres || restore {
                planned = plan(stores).await.context("compare the two stores again")?;
                left = still_open(&planned);
            }
        }
        (_, _) => {
            for line in lines(&planned) {
                say(verb, line)?;
            }
            for repair in &planned.externals {
                print_look(repair, &mut say)?;
            }
            for repair in &planned.transactions {
                print_looks(repair, &mut say)?;
            }
        }
    }
    // The engine may have held the lock.
    drop(closed);
    left.extend(planned.left.iter().map(|(mismatch, why)| format!("{mismatch}: {why}")));
    if author.is_some() && !lost_flights.is_empty() {
        accept_flights(target, left.len(), lets_venues_send).await?;
    }
    for why in lost_flights {
        say(verb, &format_args!("take PostgreSQL's last flights for the answered ones: {why}"))?;
    }
    for left in &left {
        say("left", left)?;
    }
    print_waits(&planned, say)?;
    print_end(args.format, word, (count, outside, by_name), left.len(), out)?;
    Ok(left.len())
}

/// Marks a PostgreSQL that lacks rows that it had: it may lack those that only channels know.
/// Returns the latest incarnation that has ever been.
async fn mark_recharges(
    target: &Target,
    planned: &Plan,
    lost_flights: &[String],
) -> anyhow::Result<u64> {
    let latest = planned.incarnation.max(target.answered_incarnation());
    let has_all = planned.behind.is_none()
        && planned.repairs.is_empty()
        && planned.externals.is_empty()
        && lost_flights.is_empty();
    if has_all {
        return Ok(latest);
    }
    let Target { address, limits, config, .. } = target;
    let marked = recover::mark(address, limits, config.recharge.enabled).await;
    marked.context("mark PostgreSQL for a recovery of recharges")?;
    Ok(latest)
}

/// Prints the decisions of [`restore_log`], and the reason under which venues may send.
fn print_restored(
    (planned, halted): &(Plan, Option<String>),
    verb: &str,
    mut say: impl FnMut(&str, &dyn Display) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for step in &planned.steps {
        say(verb, step)?;
    }
    for renumbering in &planned.renumberings {
        say(verb, renumbering)?;
    }
    halted.as_ref().map_or(Ok(()), |reason| say("halted", reason))
}

/// Prints each change that was made. Returns the numbers of the others: of transfers, of external
/// operations, and of transactions.
fn print_fates(
    planned: &Plan,
    fates: &Fates,
    verb: &str,
    mut say: impl FnMut(&str, &dyn Display) -> std::io::Result<()>,
) -> std::io::Result<[usize; 3]> {
    let mut failed = [0; 3];
    for (repair, repaired) in planned.repairs.iter().zip(&fates.transfers) {
        match repaired {
            Repaired::Done => say(verb, repair)?,
            Repaired::Short | Repaired::Occupied => failed[0] += 1,
        }
    }
    for (repair, repaired) in planned.externals.iter().zip(&fates.externals) {
        match repaired {
            Repaired::Done => {
                say(verb, repair)?;
                print_look(repair, &mut say)?;
            }
            Repaired::Short | Repaired::Occupied => failed[1] += 1,
        }
    }
    for (repair, repaired) in planned.transactions.iter().zip(&fates.transactions) {
        match repaired {
            Repaired::Done => {
                say(verb, repair)?;
                print_looks(repair, &mut say)?;
            }
            Repaired::Short | Repaired::Occupied => failed[2] += 1,
        }
    }
    Ok(failed)
}

/// Prints the parts of a transaction that only people can end.
fn print_looks(
    repair: &TransactionRepair,
    mut say: impl FnMut(&str, &dyn Display) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for look in &repair.looks {
        say("look", &format_args!("transaction {}: {look}", repair.transaction))?;
    }
    Ok(())
}

/// Prints the part of an external operation that only people can end.
fn print_look(
    repair: &ExternalRepair,
    mut say: impl FnMut(&str, &dyn Display) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let name = repair.operation.idem_key.as_str();
    repair.look.as_ref().map_or(Ok(()), |look| say("look", &format_args!("{name}: {look}")))
}

/// Prints the venues that must send first, and the next step.
fn print_waits(
    planned: &Plan,
    mut say: impl FnMut(&str, &dyn Display) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for venue in &planned.awaited {
        say("waits", &format_args!("for {venue}; or: ubscore venue close"))?;
    }
    if !planned.awaited.is_empty() {
        say("next", &VENUES_NEXT)?;
    }
    Ok(())
}

/// Refuses a log that `engine adopt` has begun to rebuild.
async fn refuse_begun(target: &Target) -> anyhow::Result<()> {
    let asked = Asked::connect(&target.address, &target.limits).await?;
    ensure!(!asked.bound().await?.begun, postgres::Error::Unadopted);
    Ok(())
}

/// Opens the log. Its lock keeps every other writer out, and its last records become durable before
/// PostgreSQL relies on them.
fn open_log(target: &Target) -> anyhow::Result<Closed> {
    let open = || Closed::open(target.engine.clone()).context("open the log");
    tokio::task::block_in_place(open)
}

/// Writes the file of answered flights anew. It comes last, because a start is refused until then.
/// With differences that are left, the next start is halted.
///
/// `lets_venues_send`: both places hold the halt of a cut, with one reason, under which venues send
/// again. A further cause in one of them would stop the venues, and the cut that is open stands
/// behind every resume anyway.
async fn accept_flights(
    target: &Target,
    left: usize,
    lets_venues_send: bool,
) -> anyhow::Result<()> {
    let data_dir = &target.config.data_dir;
    let _lock = data_dir::lock(data_dir).context("lock the log")?;
    crash::point("repair_before_flights");
    if left > 0 && !lets_venues_send {
        let why = format!("`ubscore repair` has left {left} differences");
        halt::keep_for_next_start(data_dir, &why).context("halt the next start")?;
    }
    target.write_flights().await?;
    crash::point("repair_after_flights");
    Ok(())
}

/// Every change of a plan.
fn lines(planned: &Plan) -> Vec<&dyn Display> {
    let mut lines: Vec<&dyn Display> = Vec::new();
    lines.extend(planned.repairs.iter().map(|repair| repair as &dyn Display));
    lines.extend(planned.externals.iter().map(|repair| repair as &dyn Display));
    lines.extend(planned.transactions.iter().map(|repair| repair as &dyn Display));
    lines.extend(planned.steps.iter().map(|step| step as &dyn Display));
    lines.extend(planned.renumberings.iter().map(|renumbering| renumbering as &dyn Display));
    lines
}

/// The changes that are missing after a repair, each with the reason.
fn still_open(planned: &Plan) -> Vec<String> {
    let mut left = Vec::new();
    for repair in &planned.repairs {
        let why = "insufficient Funding balance, or the cid is already used";
        left.push(format!("{repair}: {why}"));
    }
    for repair in &planned.externals {
        let why = "insufficient Funding balance, or the idem_key is already used";
        left.push(format!("{repair}: {why}"));
    }
    for repair in &planned.transactions {
        left.push(format!("{repair}: its order number or its name is already used"));
    }
    // In front of the venues, a posting of a transaction may wait for another run.
    let waits = |step: &&PlanStep| !planned.awaited.is_empty() && step.transaction().is_some();
    for step in planned.steps.iter().filter(|step| !waits(step)) {
        left.push(format!("{step}: found only after the repair; repair again"));
    }
    left
}

/// Prints the last line.
fn print_end(
    format: Format,
    word: &str,
    (count, outside, by_name): (usize, usize, usize),
    found: usize,
    out: &mut impl Write,
) -> std::io::Result<()> {
    match format {
        Format::Text => {
            let also = match outside {
                0 => String::new(),
                count => format!(" external={count}"),
            };
            let more = match by_name {
                0 => String::new(),
                count => format!(" transactions={count}"),
            };
            writeln!(out, "{word} transfers={count}{also}{more} left={found}")?;
        }
        Format::Json => {
            let end = json!({
                "kind": "end", "verdict": word, "transfers": count, "external": outside,
                "transactions": by_name, "left": found,
            });
            writeln!(out, "{end}")?;
        }
    }
    Ok(())
}

/// The author of a repair, for the audit row: the users of the tokens. Without tokens it is the
/// command itself, unless the configuration asks for two operators.
pub(super) fn actor(
    command: &str,
    apply: bool,
    tokens: (Option<&Path>, Option<&Path>),
    config: &Config,
) -> anyhow::Result<String> {
    let (Some(one), Some(other)) = tokens else {
        ensure!(
            !apply || !config.approval.required.contains(&Action::Repair),
            "approval.required names repair: give --token-file and --approver-token-file, of two admins"
        );
        return Ok(command.to_owned());
    };
    let verifier = Verifier::new(&config.auth).context("read the token key")?;
    let admin = |file: &Path| -> anyhow::Result<u64> {
        let token = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let header = format!("Bearer {}", token.trim());
        let claims = verifier
            .verify(Some(&header), SystemClock::new().now_s())
            .with_context(|| format!("the token in {}", file.display()))?;
        ensure!(claims.role == Some(Role::Admin), "{}: not an admin's token", file.display());
        Ok(claims.user_id)
    };
    let (maker, approver) = (admin(one)?, admin(other)?);
    ensure!(maker != approver, "both tokens are of user {maker}: another admin has to approve it");
    Ok(format!("{command} by admin/{maker}, approved by admin/{approver}"))
}

/// Lets UBSCore decide again as PostgreSQL proves, then writes the numbers of the new records to
/// PostgreSQL. Returns the plan that was carried out and, if venues may send now, the reason of the
/// halt. `although_halted`: also if that has another cause beside the cut.
///
/// After a crash in between, the same command continues: a decision is found in the log, and a
/// missing number is found by the records that PostgreSQL names.
async fn restore_log(
    stores: &Stores,
    target: &Target,
    (closed, log): (Closed, Identity),
    incarnation: u64,
    author: Author<'_>,
    although_halted: bool,
) -> anyhow::Result<(Plan, Option<String>)> {
    let Target { address, limits, .. } = target;
    let claim = fence(address, limits, log, incarnation).await.context("fence PostgreSQL")?;
    crash::point("repair_after_fence");
    // Plan again: every transaction that was under way in PostgreSQL has ended now.
    let planned = plan(stores.again()).await.context("compare the two stores")?;
    // A withdrawal that is left may rest on a lost number: the venue can still send that.
    let is_left = planned.has_venues && !planned.left.is_empty();
    let lets_venues_send = is_left || !planned.awaited.is_empty();
    let data_dir = &target.config.data_dir;
    if lets_venues_send && !although_halted {
        // Before anything is decided.
        let refused =
            refuse_other_cause(address, limits, halt::found_in(data_dir).as_deref()).await;
        refused.context("write PostgreSQL")?;
    }
    if lets_venues_send && planned.sent && !planned.steps.is_empty() {
        // A run that is killed behind these steps must not be followed by one that takes later
        // payments: the venues open first.
        let in_data_dir = halt::found_in(data_dir);
        let credits = CutRepair::Credits { in_data_dir: in_data_dir.as_deref(), although_halted };
        let marked = renumber(address, limits, log, incarnation, (&[], credits), author).await;
        marked.context("write PostgreSQL")?;
    }
    let mut closed = Some(closed);
    if !planned.steps.is_empty()
        && let Some(closed) = closed.take()
    {
        let replay = || closed.replay(claim, |_| {});
        let replayed = tokio::task::block_in_place(replay).context("replay the log")?;
        let engine = replayed.start(log, |sync| sync()).context("start the engine")?;
        let done = decide(&engine, &planned.steps).await;
        // Decisions become durable before they are printed, also if one of them failed.
        tokio::task::block_in_place(|| engine.stop());
        done?;
        crash::point("repair_after_steps");
    }
    let decided = plan(stores.again()).await.context("compare the two stores")?.renumberings;
    let in_data_dir = halt::found_in(data_dir);
    let repair = match lets_venues_send {
        true => CutRepair::Credits { in_data_dir: in_data_dir.as_deref(), although_halted },
        false => CutRepair::Done,
    };
    let halted = renumber(address, limits, log, incarnation, (&decided, repair), author)
        .await
        .context("write PostgreSQL")?;
    crash::point("repair_after_postgres");
    if let Some(reason) = &halted {
        // A start lets the venues send again only if both places have the same reason.
        let lock = || data_dir::lock(data_dir).context("lock the log");
        // The engine had it.
        let _lock = if closed.is_none() { Some(lock()?) } else { None };
        halt::keep(data_dir, reason).context("halt the next start")?;
    }
    Ok((planned, halted))
}

/// Decides the steps in order: a step may need the balance of an earlier one. Carried balances are
/// independent and share syncs of the log.
pub(super) async fn decide(engine: &Engine, steps: &[PlanStep]) -> anyhow::Result<()> {
    let (mut handle, clock) = (engine.handle(), SystemClock::new());
    let mut rest = steps;
    while !rest.is_empty() {
        crash::point("repair_before_step");
        let carried = rest.iter().take_while(|step| matches!(step, PlanStep::Carry { .. })).count();
        let (together, behind) = rest.split_at(carried.clamp(1, handle.share()));
        let submitted = match together {
            [step] => vec![put(&mut handle, step, clock.now_ns())],
            _ => handle.submit_all(together.iter().map(PlanStep::command), clock.now_ns()),
        };
        for (step, submitted) in together.iter().zip(submitted) {
            let answer = match submitted {
                Ok(pending) => pending.await.ok().context("UBSCore has stopped")?,
                Err(Overloaded) => Answer::Overloaded,
            };
            let answer = match answer {
                Answer::Overloaded => ask_again(&mut handle, &clock, step).await?,
                answer => answer,
            };
            ensure!(step.is_answer(&answer), "{step}: UBSCore answers {answer:?}");
        }
        rest = behind;
    }
    Ok(())
}

/// Publishes a step.
fn put(handle: &mut Handle, step: &PlanStep, time_ns: u64) -> Result<Pending, Overloaded> {
    match step {
        PlanStep::Post { op, posting } => handle.submit_named(*op, posting, time_ns),
        step => handle.submit(step.command(), time_ns),
    }
}

/// Until there is room: nothing has happened, the next segment is not ready yet, or there is no
/// room for it.
async fn ask_again(
    handle: &mut Handle,
    clock: &SystemClock,
    step: &PlanStep,
) -> anyhow::Result<Answer> {
    let began = clock.monotonic_ns();
    loop {
        let waited = Duration::from_nanos(clock.monotonic_ns() - began);
        ensure!(waited < ROOM_WAIT, "{step}: UBSCore has no room for it");
        clock.sleep(ROOM_PAUSE).await;
        if let Ok(pending) = put(handle, step, clock.now_ns()) {
            let answer = pending.await.ok().context("UBSCore has stopped")?;
            if answer != Answer::Overloaded {
                return Ok(answer);
            }
        }
    }
}
