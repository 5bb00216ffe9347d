//! `ubscore recharge`: finds orders and held payments, shows everything about one, and ends them.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{attend, note_cursor, path, rows, write_rows};
use super::ops::Ops;
use super::recover;
use super::table::{aligned, text};
use crate::cli::{
    AccessArgs, OperatorArgs, PaymentAttendArgs, ReceivableArgs, RechargeCommand,
    RechargeCreditArgs, RechargeListArgs, RechargeRefundArgs, RechargeShowArgs, RecoverArgs,
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
            act(&args.operator, clock, ("close", &thing), &body, order_stands, out)?;
        }
        RechargeCommand::Credit(args) => credit(args, clock, out)?,
        RechargeCommand::Return(args) => end(args, clock, ("return", "on its way back"), out)?,
        RechargeCommand::Dismiss(args) => end(args, clock, ("dismiss", "dismissed"), out)?,
        RechargeCommand::Rematch(args) => end(args, clock, ("rematch", "decided again"), out)?,
        RechargeCommand::Refund(args) => refund(args, clock, out)?,
        RechargeCommand::Recover(args) => match &args.id {
            None => return recover::run(args, out),
            Some(id) => recover_owed(args, id, clock, out)?,
        },
        RechargeCommand::WriteOff(args) => {
            let ReceivableArgs { id, idem_key, operator } = args;
            owed((id, idem_key), (&operator.reason, &operator.access), clock, "write-off", out)?;
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
    let parameters = [
        ("held", args.held.clone()),
        ("overdue", args.overdue.then(|| "true".to_owned())),
        ("user", args.user.map(|user| user.to_string())),
        ("trade_no", args.trade_no.clone()),
        ("channel", args.channel.clone()),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("cursor", args.cursor.clone()),
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
    let amount = match row["amount"].as_str() {
        Some(amount) => format!("{amount} {}", of("asset")),
        None => format!("{} minor units", of("minor_units")),
    };
    vec![
        of("return_id"),
        of("payment_id"),
        of("kind"),
        amount,
        of("state"),
        of("code"),
        of("updated_at"),
    ]
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
        writeln!(out, "  channel {}, its number {}", of("channel"), of("reference"))?;
        writeln!(out, "  made {}, expires {}", of("created_at"), of("expires_at"))?;
        writeln!(out, "  next look {}, closing {}", of("next_at"), of("closing"))?;
    }
    let table = |list: &str, keys: &[&str]| {
        let row = |row: &Value| keys.iter().map(|key| text(&row[*key])).collect();
        rows(&whole, list).iter().map(row).collect::<Vec<Vec<String>>>()
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
        let keys = ["return_id", "user_id", "amount", "asset", "recovered", "written_off", "open"];
        let head = ["RETURN_ID", "USER", "AMOUNT", "ASSET", "RECOVERED", "WRITTEN_OFF", "OPEN"];
        write!(out, "{}", aligned("  ", &head, table("receivables", &keys)))?;
    }
    writeln!(out, "movements")?;
    let movements = table("movements", &["at", "debit", "credit", "amount", "asset", "key"]);
    let head = ["AT", "FROM", "TO", "AMOUNT", "ASSET", "KEY"];
    write!(out, "{}", aligned("  ", &head, movements))?;
    writeln!(out, "history")?;
    let passed = table("history", &["state", "at", "by", "reason"]);
    write!(out, "{}", aligned("  ", &["STATE", "AT", "BY", "REASON"], passed))?;
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
    format!("{id}: {state}, {} {} of {payment}", of("amount"), of("asset"))
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
    act(operator, clock, ("refund", &thing), &body, return_stands, out)
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
    act_by(access, clock, (what, &thing), &body, receivable_stands, out)
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
    act(operator, clock, ("credit", &thing), &body, payment_stands, out)
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
    operator: &OperatorArgs,
    clock: &impl Clock,
    (what, path): (&str, &str),
    body: &Value,
    stands: fn(&Value) -> String,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    act_by(&operator.access, clock, (what, path), body, stands, out)
}

fn act_by(
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
