//! `ubscore recharge recover`: behind a restore, the orders, payments and returns that PostgreSQL
//! has lost come back from the bills and the answers of their channels.
//!
//! `--apply` runs the service in this process, on addresses of its own that nothing else knows. So
//! there is one way for money: each payment is told as any query tells it, and the worker of its
//! user decides. A credit that `ubscore repair` has brought back is found, and books nothing.

mod bonus;
mod lost;
mod walk;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use jiff::tz::Offset;
use serde_json::json;
use tokio::sync::oneshot;

use self::bonus::{Money, bonus_text, reserves};
use self::lost::Lost;
use self::walk::{Walk, Walked};
use super::configured::load_config;
use super::repair;
use super::roles::primary::{self, Ready};
use super::roles::recharges::{channel_terms, proofs};
use super::roles::signals::Signals;
use crate::audit::verify::Stores;
use crate::channels::keyed::KeyedChannel;
use crate::cli::RecoverArgs;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::coordinator::recharges::recovered::proven;
use crate::crash;
use crate::exit::Exit;
use crate::format::Format;
use crate::http::service::{RechargeDesk, Service};
use crate::postgres;
use crate::postgres::promotions::remade::Remade;
use crate::postgres::reads::Reads;
use crate::recharge::answers::{BillKind, BillLine};
use crate::recharge::facts::Facts;
use crate::recharge::order::Recharge;
use crate::recharge::terms::ChannelTerms;
use crate::recharge::{PaymentId, RechargeId};
use crate::stores::{Target, with_stores};

/// The name of the command, in the audit trail.
const COMMAND: &str = "ubscore recharge recover";
/// The latest zone of a channel's days, hours east of UTC.
const EAST: i8 = 8;

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    orders: usize,
    payments: usize,
    returns: usize,
    left: usize,
}

/// Prints the plan of a recovery, or carries it out; one line each.
///
/// # Errors
/// Recharges are off; a service runs; PostgreSQL is away.
pub(super) fn run(args: &RecoverArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let config = load_config(&args.stores())?;
    ensure!(config.recharge.enabled, "recharge.enabled is false: there is nothing to recover");
    let counts = match args.apply {
        false => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let work = async |_: Stores, target: &Target| plan(args, target, out).await;
            runtime.context("start")?.block_on(with_stores(config, work))?
        }
        true => apply(args, config, out)?,
    };
    Ok(if counts.left == 0 { Exit::Done } else { Exit::Failed })
}

/// Prints one line.
fn say(out: &mut impl Write, format: Format, word: &str, what: &str) -> std::io::Result<()> {
    match format {
        Format::Text => writeln!(out, "{word:<8} {what}"),
        Format::Json => writeln!(out, "{}", json!({"kind": word, "what": what})),
    }
}

/// Prints the last line.
fn say_end(
    out: &mut impl Write,
    format: Format,
    word: &str,
    counts: Counts,
) -> std::io::Result<()> {
    let Counts { orders, payments, returns, left } = counts;
    match format {
        Format::Text => writeln!(
            out,
            "{word} orders={orders} payments={payments} returns={returns} left={left}"
        ),
        Format::Json => {
            let end = json!({
                "kind": "end", "verdict": word, "orders": orders, "payments": payments,
                "returns": returns, "left": left,
            });
            writeln!(out, "{end}")
        }
    }
}

/// The walk of a run.
fn walk<'a>(args: &RecoverArgs, config: &Config, reads: &'a Reads, lost: &'a Lost) -> Walk<'a> {
    let rate = config.recharge.calls_per_second_max.max(1);
    let today = Offset::constant(EAST).to_datetime(now()).date();
    Walk {
        reads,
        since: args.since.unwrap_or(today),
        until: today,
        lost: &lost.keys,
        pause: Duration::from_secs(1) / rate,
    }
}

fn now() -> Timestamp {
    let us = i64::try_from(SystemClock::new().now_ns() / 1_000).expect("a date of today");
    Timestamp::from_microsecond(us).expect("a date of today")
}

/// Prints the bills that are not made yet, and returns the number of calls without an end.
fn say_open(out: &mut impl Write, format: Format, walked: &Walked) -> std::io::Result<usize> {
    for what in &walked.waits {
        say(out, format, "waits", &format!("for {what}"))?;
    }
    for what in &walked.unknown {
        say(out, format, "left", what)?;
    }
    Ok(walked.unknown.len())
}

/// A remade order in words.
fn order_text(order: &Recharge, facts: &Facts) -> String {
    let Recharge { id, user, channel, .. } = order;
    let Facts { minor_units, currency, trade_no, .. } = facts;
    format!(
        "order {id}, user {user}: make it again from the proof of {trade_no}, {minor_units} minor \
         units of {currency} by channel {channel}"
    )
}

/// Prints everything that is lost. It changes nothing, and a service may run.
async fn plan(args: &RecoverArgs, target: &Target, out: &mut impl Write) -> anyhow::Result<Counts> {
    let Target { address, limits, config, .. } = target;
    let catalog = Arc::default();
    let reads = Reads::new(postgres::pool(address, limits, 2), catalog);
    let catalog = reads.load_catalog().await.context("read the assets")?;
    let (lost, mut money) = (Lost::read(&reads).await?, Money::read(&reads).await?);
    let (walk, proofs) = (walk(args, config, &reads, &lost), proofs(config));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let timeout = Duration::from_millis(config.recharge.call_timeout_ms);
    let mut counts = Counts::default();
    let format = args.access.format;
    for (name, section) in &config.channels {
        let terms = channel_terms(name, section, &catalog)?;
        let channel = KeyedChannel::open(name, section, timeout, Arc::clone(&clock));
        let channel = Arc::new(channel.context("open a payment channel")?);
        let walked = walk.channel(&terms, &channel).await?;
        for facts in &walked.paid {
            let order = match RechargeId::parse(&facts.merchant_no) {
                Some(id) => reads.recharge(id).await.context("read an order")?,
                None => None,
            };
            if order.is_none()
                && let Some(order) = proven(&proofs, &catalog, &terms, facts, now())
            {
                let reserves = reserves(&lost, &order, PaymentId::of(name, &facts.trade_no));
                let made = money.remade(&order, reserves);
                let what = order_text(&order, facts);
                let what = format!("{what}{}", bonus_text(&catalog, &order, reserves, made));
                if made == Remade::NoPromotion {
                    counts.left += 1;
                    say(out, format, "left", &what)?;
                    continue;
                }
                counts.orders += 1;
                say(out, format, "would", &what)?;
            }
            counts.payments += 1;
            say(out, format, "would", &lost.payment_text(&terms, facts))?;
        }
        for line in &walked.returns {
            if let Some(what) = lost.return_text(&reads, &terms, line).await? {
                counts.returns += 1;
                say(out, format, "would", &what)?;
            }
        }
        counts.left += say_open(out, format, &walked)?;
    }
    say_end(out, format, "planned", counts)?;
    Ok(counts)
}

/// A service in this process.
struct Own {
    ready: Ready,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<anyhow::Result<Exit>>,
}

impl Own {
    /// Starts it on addresses of its own.
    fn start(mut config: Config, development: bool) -> anyhow::Result<Own> {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (config.http.listen, config.ops.listen, config.callbacks.listen) = (own, own, own);
        config.stream.listen = None;
        let (stop, stopped) = oneshot::channel();
        let (sender, receiver) = channel();
        let run = move || {
            let ready = |ready| sender.send(ready).context("the command has ended");
            primary::run_until(config, development, || Ok(Signals::Program(stopped)), ready)
        };
        let thread = thread::Builder::new().name("service".to_owned()).spawn(run)?;
        match receiver.recv() {
            Ok(ready) => Ok(Own { ready, stop, thread }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                Ok(Ok(_)) => bail!("the service stopped before it was ready"),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }

    fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        match self.thread.join() {
            Ok(ended) => ended.map(|_| ()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn apply(args: &RecoverArgs, config: Config, out: &mut impl Write) -> anyhow::Result<Counts> {
    let tokens = args.tokens();
    let actor = repair::actor(COMMAND, true, tokens, &config)?;
    let own = Own::start(config.clone(), args.access.dev)?;
    let done = {
        let service = own.ready.service.upgrade().context("the service has stopped")?;
        let work = carry_out(args, &config, &service, &actor, out);
        own.ready.runtime.block_on(work)
    };
    own.stop().context("stop the service")?;
    done
}

/// Carries everything out, in a service that serves no one else.
async fn carry_out(
    args: &RecoverArgs,
    config: &Config,
    service: &Service,
    actor: &str,
    out: &mut impl Write,
) -> anyhow::Result<Counts> {
    let desk = service.recharges.as_ref().context("recharges are off")?;
    let (halt, reads) = (&service.transfers.halt, &service.transfers.reads);
    ensure!(!halt.is_halted(), "the service is halted: start it, resume it, and stop it first");
    let lost = Lost::read(reads).await?;
    let walk = walk(args, config, reads, &lost);
    let (format, reason) = (args.access.format, args.reason.as_deref().unwrap_or_default());
    let (mut counts, mut unknown) = (Counts::default(), 0);
    let (mut returns, mut unpromoted) = (Vec::new(), Vec::new());
    for open in desk.channels.all() {
        let walked = walk.channel(&open.terms, &*open.channel).await?;
        for facts in &walked.paid {
            let last = unknown == 0 && unpromoted.is_empty();
            let told = (&open.terms, facts, reason, last);
            match payment(desk, reads, &lost, told, (&mut counts, format), out).await {
                Ok(true) => {}
                Ok(false) => unpromoted.push(facts.merchant_no.clone()),
                // One that cannot be decided keeps no other one back.
                Err(why) => {
                    unknown += 1;
                    say(out, format, "left", &format!("{why:#}"))?;
                }
            }
            crash::point("recover_after_payment");
        }
        unknown += say_open(out, format, &walked)?;
        returns.extend(walked.returns.into_iter().map(|line| (Arc::clone(&open.terms), line)));
    }
    let (given, returns): (Vec<_>, _) =
        returns.into_iter().partition(|(_, line)| line.kind == BillKind::GivenBack);
    let parts = (desk, reads, &lost);
    unknown += bring_returns(parts, returns, (&mut counts, format), out).await?;
    unknown += bring_receivables(desk, reads, format, out).await?;
    // Money that comes back closes what its user has not paid.
    unknown += bring_returns(parts, given, (&mut counts, format), out).await?;
    // Those that no bill has yet.
    let today = Lost::read(reads).await?.refunds(reads, &desk.channels, &walk).await?;
    unknown += bring_returns(parts, today.0, (&mut counts, format), out).await?;
    unknown += today.1 + unpromoted.len();
    for key in Lost::read(reads).await?.keys {
        if is_of(&key.key, &unpromoted) {
            continue;
        }
        counts.left += 1;
        let (key, user) = (key.key, key.user);
        let what = format!("{key}, user {user}: no bill and no answer shows its payment");
        say(out, format, "left", &what)?;
    }
    if unknown == 0 {
        crash::point("recover_before_end");
        let Counts { orders, payments, returns, left } = counts;
        let detail =
            format!("{orders} orders, {payments} payments, {returns} returns, {left} left");
        let ended = service.transfers.admin.recovered(actor, &detail, reason).await;
        ended.context("end the need to recover")?;
    } else {
        say(out, format, "next", "the same command again: until then no refund is sent")?;
    }
    counts.left += unknown;
    say_end(out, format, "recovered", counts)?;
    Ok(counts)
}

/// Whether a key is one of these orders, which are left already.
fn is_of(key: &str, merchant_nos: &[String]) -> bool {
    let mut ulids =
        merchant_nos.iter().filter_map(|number| number.strip_prefix(RechargeId::PREFIX));
    let named = key.strip_prefix("recharge/").and_then(|rest| rest.split('/').next());
    named.is_some_and(|named| ulids.any(|ulid| ulid == named))
}

/// Brings returns back, or takes their money. Returns the number of those that are refused.
async fn bring_returns(
    (desk, reads, lost): (&RechargeDesk, &Reads, &Lost),
    returns: Vec<(Arc<ChannelTerms>, BillLine)>,
    (counts, format): (&mut Counts, Format),
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let mut refused = 0;
    for (terms, line) in returns {
        let Some(what) = lost.return_text(reads, &terms, &line).await? else { continue };
        match lost::tell(&desk.recharges, &terms, &line).await {
            Ok(true) => {
                counts.returns += 1;
                say(out, format, "done", &what)?;
            }
            Ok(false) => {
                counts.left += 1;
                say(out, format, "left", &what)?;
            }
            Err(why) => {
                refused += 1;
                say(out, format, "left", &format!("{what}: {why:#}"))?;
            }
        }
    }
    Ok(refused)
}

/// Ends receivables again that their users have paid. One behind a lost act has its line behind
/// this. Returns the number of those that are refused.
async fn bring_receivables(
    desk: &RechargeDesk,
    reads: &Reads,
    format: Format,
    out: &mut impl Write,
) -> anyhow::Result<usize> {
    let mut refused = 0;
    for (id, number) in Lost::read(reads).await?.receivables() {
        let what =
            format!("receivable {id}, debit {number}: it is in the log, and its user has paid");
        match desk.recharges.paid_before(id, number).await {
            Ok(true) => say(out, format, "done", &what)?,
            Ok(false) => {}
            Err(why) => {
                refused += 1;
                say(out, format, "left", &format!("{:#}", lost::refusal(&what, &why)))?;
            }
        }
    }
    Ok(refused)
}

/// Brings one payment back: its order first, then it is told. Returns `false` if it is left, since
/// the promotion of its order is not here.
async fn payment(
    desk: &RechargeDesk,
    reads: &Reads,
    lost: &Lost,
    (terms, facts, reason, last): (&Arc<ChannelTerms>, &Facts, &str, bool),
    (counts, format): (&mut Counts, Format),
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let (recharges, catalog) = (&desk.recharges, reads.catalog());
    let proven = proven(recharges.proofs(), &catalog, terms, facts, now());
    if let Some(order) = proven {
        let what = order_text(&order, facts);
        let reserves = reserves(lost, &order, PaymentId::of(&terms.name, &facts.trade_no));
        let made = recharges.remade(order.clone(), reserves, reason).await;
        let made = made.map_err(|why| lost::refusal(&what, &why))?;
        let what = format!("{what}{}", bonus_text(&catalog, &order, reserves, made));
        match made {
            Remade::Found => {}
            Remade::Made { .. } => {
                counts.orders += 1;
                say(out, format, "done", &what)?;
            }
            Remade::NoPromotion => {
                say(out, format, "left", &what)?;
                return Ok(false);
            }
        }
    }
    let what = lost.payment_text(terms, facts);
    let told = lost::told(recharges, reads, lost, (terms, facts, last)).await;
    let Some(answer) = told.map_err(|why| lost::refusal(&what, &why))? else { return Ok(true) };
    let Some(payment) = answer.payment.filter(|_| answer.decision.writes()) else {
        return Ok(true);
    };
    counts.payments += 1;
    say(out, format, "done", &format!("{what}; it is {}", payment.disposition.name()))?;
    Ok(true)
}
