//! `ubscore recharge`: finds orders and held payments, shows everything about one, and ends them.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{attend, note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::recover;
use super::table::{aligned, text};
use crate::cli::{
    AccessArgs, FindingListArgs, PaymentAttendArgs, ReceivableArgs, ReceivableListArgs,
    RechargeCommand, RechargeCreditArgs, RechargeListArgs, RechargeRefundArgs, RechargeShowArgs,
    RechargeTakenArgs, ReconcileArgs, RecoverArgs,
};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

/// Runs one of the commands. Results go to `out`, notes to `notes`.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &RechargeCommand,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        RechargeCommand::List(args) => list(args, clock, out, notes)?,
        RechargeCommand::Show(args) => show(args, clock, out)?,
        RechargeCommand::Query(args) => {
            let thing = format!("recharges/{}", args.id);
            attend(&args.operator, clock, &thing, ("query", "asked"), order_stands, out)?;
        }
        RechargeCommand::Close(args) => {
            let body = json!({"reason": args.operator.reason, "force": args.force});
            let thing = format!("recharges/{}/close", args.id);
            act(&args.operator.access, clock, ("close", &thing), &body, order_stands, out)?;
        }
        RechargeCommand::Credit(args) => credit(args, clock, out)?,
        RechargeCommand::Return(args) => end(args, clock, ("return", "on its way back"), out)?,
        RechargeCommand::Dismiss(args) => end(args, clock, ("dismiss", "dismissed"), out)?,
        RechargeCommand::Rematch(args) => end(args, clock, ("rematch", "decided again"), out)?,
        RechargeCommand::Taken(args) => taken(args, clock, out)?,
        RechargeCommand::Refund(args) => refund(args, clock, out)?,
        RechargeCommand::Receivables(args) => receivables(args, clock, out, notes)?,
        RechargeCommand::Recover(args) => match &args.id {
            None => return recover::run(args, out),
            Some(id) => recover_owed(args, id, clock, out)?,
        },
        RechargeCommand::WriteOff(args) => {
            let ReceivableArgs { id, idem_key, operator } = args;
            owed((id, idem_key), (&operator.reason, &operator.access), clock, "write-off", out)?;
        }
        RechargeCommand::Reconcile(args) => reconcile(args, clock, out)?,
        RechargeCommand::Findings(args) => findings(args, clock, out)?,
        RechargeCommand::DismissFinding(args) => {
            let thing = format!("findings/{}", args.id);
            let action = ("dismiss", "dismissed");
            attend(&args.operator, clock, &thing, action, finding_stands, out)?;
        }
    }
    Ok(Exit::Done)
}

fn list(
    args: &RechargeListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let [limit, cursor] = args.page.parameters();
    let parameters = [
        ("held", args.held.clone()),
        ("overdue", args.overdue.then(|| "true".to_owned())),
        ("user", args.user.map(|user| user.to_string())),
        ("trade_no", args.trade_no.clone()),
        ("channel", args.channel.clone()),
        limit,
        cursor,
    ];
    let answer = Ops::new(&args.access, clock)?.get("list", &path("recharges", parameters))?;
    if args.held.is_some() || args.trade_no.is_some() {
        let head = ["PAYMENT_ID", "CHANNEL", "TRADE_NO", "AMOUNT", "STATE", "CAUSE", "USER", "AT"];
        let payments = rows(&answer, "payments");
        write_rows(payments, args.access.format, "no payments", (&head, payment_row), out)?;
    } else {
        let head = ["RECHARGE_ID", "CHANNEL", "USER", "AMOUNT", "STATE", "CLOSING", "CREATED"];
        let orders = rows(&answer, "recharges");
        write_rows(orders, args.access.format, "no recharges", (&head, order_row), out)?;
    }
    note_cursor(&answer, notes)
}

fn receivables(
    args: &ReceivableListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let [limit, cursor] = args.page.parameters();
    let parameters = [
        ("open", args.open.then(|| "true".to_owned())),
        ("user", args.user.map(|user| user.to_string())),
        limit,
        cursor,
    ];
    let answer = Ops::new(&args.access, clock)?.get("list", &path("receivables", parameters))?;
    let found = rows(&answer, "receivables");
    let table = (&OWED_HEAD[..], |row: &Value| cells(row, &OWED_KEYS));
    write_rows(found, args.access.format, "no receivables", table, out)?;
    note_cursor(&answer, notes)
}

/// The columns of receivables.
const OWED_HEAD: [&str; 8] =
    ["RETURN_ID", "USER", "AMOUNT", "ASSET", "RECOVERED", "WRITTEN_OFF", "OPEN", "AT"];
/// The keys of the same.
const OWED_KEYS: [&str; 8] =
    ["return_id", "user_id", "amount", "asset", "recovered", "written_off", "open", "at"];

/// The values of these keys as cells.
fn cells(row: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| text(&row[*key])).collect()
}

fn order_row(order: &Value) -> Vec<String> {
    let of = |key: &str| text(&order[key]);
    vec![
        of("recharge_id"),
        of("channel"),
        of("user_id"),
        amount_of(order),
        of("state"),
        of("closing"),
        of("created_at"),
    ]
}

fn payment_row(payment: &Value) -> Vec<String> {
    let of = |key: &str| text(&payment[key]);
    vec![
        of("payment_id"),
        of("channel"),
        of("trade_no"),
        amount_of(payment),
        of("disposition"),
        of("cause"),
        of("user_id"),
        of("at"),
    ]
}

fn return_row(row: &Value) -> Vec<String> {
    let of = |key: &str| text(&row[key]);
    vec![
        of("return_id"),
        of("payment_id"),
        of("kind"),
        part_of(row),
        of("state"),
        of("code"),
        of("updated_at"),
    ]
}

fn event_row(event: &Value) -> Vec<String> {
    let delivery = |row: &Value| {
        let error = row["error"].as_str().map(|error| format!(", {error}")).unwrap_or_default();
        format!("{} after {} tries{error}", text(&row["state"]), text(&row["attempts"]))
    };
    let deliveries: Vec<String> = rows(event, "deliveries").iter().map(delivery).collect();
    let deliveries = if deliveries.is_empty() { "-".to_owned() } else { deliveries.join("; ") };
    [cells(event, &["event_id", "type", "at"]), vec![deliveries]].concat()
}

/// The amount of a return with its asset; without one, the channel's minor units.
fn part_of(row: &Value) -> String {
    match row["amount"].as_str() {
        Some(amount) => format!("{amount} {}", text(&row["asset"])),
        None => format!("{} minor units", text(&row["minor_units"])),
    }
}

/// An amount with its asset; without one, the channel's minor units.
fn amount_of(row: &Value) -> String {
    match row["amount"].as_str() {
        Some(amount) => format!("{amount} {}", text(&row["asset"])),
        None => format!("{} minor units of {}", text(&row["minor_units"]), text(&row["currency"])),
    }
}

fn show(args: &RechargeShowArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let ask = if args.ask { "?ask=true" } else { "" };
    let whole =
        Ops::new(&args.access, clock)?.get("show", &format!("recharges/{}{ask}", args.id))?;
    if args.access.format == Format::Json {
        return Ok(writeln!(out, "{whole}")?);
    }
    let order = &whole["recharge"];
    let of = |key: &str| text(&order[key]);
    if order.is_null() {
        writeln!(out, "a payment without an order")?;
    } else {
        writeln!(out, "{}", order_stands(order))?;
        writeln!(out, "  {} to {} of user {}", amount_of(order), of("to"), of("user_id"))?;
        if !order["promotion"].is_null() {
            let bonus = (of("bonus"), of("promotion"), of("bonus_state"));
            writeln!(out, "  bonus {} of promotion {}: {}", bonus.0, bonus.1, bonus.2)?;
        }
        writeln!(out, "  channel {}, its number {}", of("channel"), of("reference"))?;
        writeln!(out, "  made {}, expires {}", of("created_at"), of("expires_at"))?;
        writeln!(out, "  next look {}, closing {}", of("next_at"), of("closing"))?;
    }
    let table = |list: &str, keys: &[&str]| {
        rows(&whole, list).iter().map(|row| cells(row, keys)).collect::<Vec<Vec<String>>>()
    };
    writeln!(out, "payments")?;
    let head = ["PAYMENT_ID", "CHANNEL", "TRADE_NO", "AMOUNT", "STATE", "CAUSE", "USER", "AT"];
    write!(out, "{}", aligned("  ", &head, rows(&whole, "payments").iter().map(payment_row)))?;
    if !rows(&whole, "returns").is_empty() {
        writeln!(out, "returns")?;
        let returns = rows(&whole, "returns").iter().map(return_row);
        let head = ["RETURN_ID", "PAYMENT_ID", "KIND", "AMOUNT", "STATE", "CODE", "AT"];
        write!(out, "{}", aligned("  ", &head, returns))?;
    }
    if !rows(&whole, "receivables").is_empty() {
        writeln!(out, "receivables")?;
        write!(out, "{}", aligned("  ", &OWED_HEAD, table("receivables", &OWED_KEYS)))?;
    }
    writeln!(out, "movements")?;
    let movements = table("movements", &["at", "debit", "credit", "amount", "asset", "key"]);
    let head = ["AT", "FROM", "TO", "AMOUNT", "ASSET", "KEY"];
    write!(out, "{}", aligned("  ", &head, movements))?;
    writeln!(out, "history")?;
    let passed = table("history", &["state", "at", "by", "reason"]);
    write!(out, "{}", aligned("  ", &["STATE", "AT", "BY", "REASON"], passed))?;
    if !rows(&whole, "events").is_empty() {
        writeln!(out, "events")?;
        let head = ["EVENT_ID", "TYPE", "AT", "DELIVERIES"];
        write!(out, "{}", aligned("  ", &head, rows(&whole, "events").iter().map(event_row)))?;
    }
    if !rows(&whole, "notices").is_empty() {
        writeln!(out, "kept callbacks: ubscore channel notices")?;
        let keys = ["payment_id", "trade_no", "outcome", "bytes", "at"];
        let head = ["PAYMENT_ID", "TRADE_NO", "OUTCOME", "BYTES", "AT"];
        write!(out, "{}", aligned("  ", &head, table("notices", &keys)))?;
    }
    says(&whole["channel_says"], out)
}

/// Writes the word of the channel, if it was asked.
fn says(said: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    if said.is_null() {
        return Ok(());
    }
    let why = said["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    writeln!(out, "the channel says now: {}{why}", text(&said["word"]))?;
    for paid in rows(said, "payments") {
        let of = |key: &str| text(&paid[key]);
        let (number, returned) = (of("trade_no"), of("returned"));
        let amount = amount_of(paid);
        writeln!(out, "  {number}: {amount}, paid {}, returned {returned}", of("paid_at"))?;
    }
    Ok(())
}

/// The id and the state of an order, in one line.
fn order_stands(order: &Value) -> String {
    let closing = order["closing"].as_str().filter(|_| order["final"] == json!(false));
    let closing = closing.map(|why| format!(", closing: {why}")).unwrap_or_default();
    let code = order["code"].as_str().map(|code| format!(", {code}")).unwrap_or_default();
    format!("{}: {}{code}{closing}", text(&order["recharge_id"]), text(&order["state"]))
}

/// The same of a payment.
fn payment_stands(payment: &Value) -> String {
    let held = payment["disposition"] == json!("HELD");
    let cause = payment["cause"].as_str().filter(|_| held);
    let cause = cause.map(|cause| format!(", {cause}")).unwrap_or_default();
    format!("{}: {}{cause}", text(&payment["payment_id"]), text(&payment["disposition"]))
}

/// The same of a return.
fn return_stands(row: &Value) -> String {
    let of = |key: &str| text(&row[key]);
    let (id, payment, state) = (of("return_id"), of("payment_id"), of("state"));
    format!("{id}: {state}, {} of {payment}", part_of(row))
}

/// The same of a receivable.
fn receivable_stands(row: &Value) -> String {
    let of = |key: &str| text(&row[key]);
    let (id, open, amount) = (of("return_id"), of("open"), of("amount"));
    format!("{id}: {open} of {amount} {} is open", of("asset"))
}

fn refund(
    args: &RechargeRefundArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let RechargeRefundArgs { id, payment, amount, idem_key, operator } = args;
    let mut body = json!({"reason": operator.reason, "idem_key": idem_key});
    for (name, value) in [("payment_id", payment), ("amount", amount)] {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    let thing = format!("recharges/{id}/refund");
    act(&operator.access, clock, ("refund", &thing), &body, return_stands, out)
}

fn taken(args: &RechargeTakenArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let RechargeTakenArgs { id, amount, minor_units, number, operator } = args;
    let mut body = json!({"reason": operator.reason, "number": number});
    if let Some(amount) = amount {
        body["amount"] = json!(amount);
    }
    if let Some(minor_units) = minor_units {
        body["minor_units"] = json!(minor_units);
    }
    let thing = format!("payments/{id}/taken");
    act(&operator.access, clock, ("taken", &thing), &body, return_stands, out)
}

/// The columns of differences, and of findings behind their own.
const DIFFERENCES: [&str; 6] = ["kind", "reference", "there", "here", "currency", "plan"];

fn reconcile(args: &ReconcileArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let ReconcileArgs { channel, day, apply, operator, .. } = args;
    let body = json!({"day": day, "apply": apply, "reason": operator.reason});
    let thing = format!("channels/{channel}/reconcile");
    let answer = Ops::new(&operator.access, clock)?.post("reconcile", &thing, &body)?;
    if operator.access.format == Format::Json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let of = |key: &str| text(&answer["bill"][key]);
    if *apply {
        return Ok(writeln!(
            out,
            "{channel} {day}: to be fetched and compared, see channel bills"
        )?);
    }
    writeln!(out, "{channel} {day}: {}, {} lines", of("state"), of("lines"))?;
    let head = ["KIND", "REFERENCE", "THERE", "HERE", "CURRENCY", "PLAN"];
    let row = |one: &Value| DIFFERENCES.iter().map(|key| text(&one[*key])).collect();
    let shown = rows(&answer, "differences");
    write_rows(shown, Format::Text, "no differences", (&head, row), out)
}

fn findings(
    args: &FindingListArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let parameters = [("channel", args.channel.clone()), ("state", args.state.clone())];
    let answer = Ops::new(&args.access, clock)?.get("findings", &path("findings", parameters))?;
    let head = ["ID", "CHANNEL", "DAY", "STATE", "KIND", "REFERENCE", "THERE", "HERE", "WHAT"];
    let keys =
        ["finding_id", "channel", "day", "state", "kind", "reference", "there", "here", "what"];
    let row = |one: &Value| keys.iter().map(|key| text(&one[*key])).collect();
    write_rows(rows(&answer, "findings"), args.access.format, "no findings", (&head, row), out)
}

/// A finding in one line.
fn finding_stands(finding: &Value) -> String {
    let of = |key: &str| text(&finding[key]);
    let (id, kind, reference) = (of("finding_id"), of("kind"), of("reference"));
    format!("{id}: {}, {kind} {reference} of {} {}", of("state"), of("channel"), of("day"))
}

fn recover_owed(
    args: &RecoverArgs,
    id: &str,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let RecoverArgs { idem_key, reason, access, .. } = args;
    let given = "the arguments require it";
    let (idem_key, reason) = (idem_key.as_ref().expect(given), reason.as_ref().expect(given));
    owed((id, idem_key), (reason, access), clock, "recover", out)
}

fn owed(
    (id, idem_key): (&str, &str),
    (reason, access): (&str, &AccessArgs),
    clock: &impl Clock,
    what: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let body = json!({"reason": reason, "idem_key": idem_key});
    let thing = format!("receivables/{id}/{what}");
    act(access, clock, (what, &thing), &body, receivable_stands, out)
}

fn credit(
    args: &RechargeCreditArgs,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let RechargeCreditArgs { id, user, idem_key, operator } = args;
    let mut body = json!({"reason": operator.reason, "idem_key": idem_key});
    if let Some(user) = user {
        body["user_id"] = json!(user);
    }
    let thing = format!("payments/{id}/credit");
    act(&operator.access, clock, ("credit", &thing), &body, payment_stands, out)
}

fn end(
    args: &PaymentAttendArgs,
    clock: &impl Clock,
    action: (&str, &str),
    out: &mut impl Write,
) -> anyhow::Result<()> {
    attend(&args.operator, clock, &format!("payments/{}", args.id), action, payment_stands, out)
}

/// Posts an action with a body of its own, and prints its result.
fn act(
    access: &AccessArgs,
    clock: &impl Clock,
    (what, path): (&str, &str),
    body: &Value,
    stands: fn(&Value) -> String,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let answer = Ops::new(access, clock)?.post(what, path, body)?;
    refuse_pending(&answer, access.format, out)?;
    match access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => writeln!(out, "{}", stands(&answer))?,
    }
    Ok(())
}
