//! `ubscore promotion`: the promotions of the running service.

use std::io::Write;

use serde_json::{Value, json};

use super::approval::refuse_pending;
use super::listing::{rows, write_rows};
use super::ops::Ops;
use super::table::text;
use crate::cli::{OperatorArgs, PromotionCommand, PromotionFundArgs, PromotionSetArgs};
use crate::clock::Clock;
use crate::exit::Exit;
use crate::format::Format;

const HEAD: [&str; 8] =
    ["PROMOTION", "ASSET", "STATUS", "BONUS MAX", "AVAILABLE", "RESERVED", "GIVEN", "ENDS"];
const KEYS: [&str; 8] =
    ["name", "asset", "status", "bonus_max", "available", "reserved", "given", "ends_at"];

/// Runs one of the commands.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn run(
    command: &PromotionCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        PromotionCommand::List(access) => {
            let answer = Ops::new(access, clock)?.get("list", "promotions")?;
            let promotions = rows(&answer, "promotions");
            write_rows(promotions, access.format, "no promotions", (&HEAD, row), out)?;
        }
        PromotionCommand::Show(args) => {
            let path = format!("promotions/{}", args.name);
            let promotion = Ops::new(&args.access, clock)?.get("show", &path)?;
            let one = std::slice::from_ref(&promotion);
            write_rows(one, args.access.format, "", (&HEAD, row), out)?;
        }
        PromotionCommand::Set(args) => set(args, clock, out)?,
        PromotionCommand::Fund(args) => fund(args, clock, out)?,
    }
    Ok(Exit::Done)
}

fn row(promotion: &Value) -> Vec<String> {
    KEYS.iter().map(|key| text(&promotion[*key])).collect()
}

fn set(args: &PromotionSetArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let mut body = json!({"reason": args.operator.reason});
    let texts = [
        ("asset", &args.asset),
        ("min_amount", &args.min_amount),
        ("fixed", &args.fixed),
        ("bonus_max", &args.bonus_max),
        ("starts_at", &args.starts_at),
        ("ends_at", &args.ends_at),
        ("status", &args.status),
    ];
    for (field, value) in texts {
        if let Some(value) = value {
            body[field] = json!(value);
        }
    }
    for (field, value) in [("basis_points", args.basis_points), ("per_user_max", args.per_user_max)]
    {
        if let Some(value) = value {
            body[field] = json!(value);
        }
    }
    let path = format!("promotions/{}", args.name);
    let answer = Ops::new(&args.operator.access, clock)?.put("set", &path, &body)?;
    stands(&args.operator, &answer, out)
}

fn fund(args: &PromotionFundArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let PromotionFundArgs { name, amount, idem_key, operator } = args;
    let body = json!({"reason": operator.reason, "amount": amount, "idem_key": idem_key});
    let path = format!("promotions/{name}/fund");
    let answer = Ops::new(&operator.access, clock)?.post("fund", &path, &body)?;
    stands(operator, &answer, out)
}

fn stands(operator: &OperatorArgs, answer: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let format = operator.access.format;
    refuse_pending(answer, format, out)?;
    let of = |key: &str| text(&answer[key]);
    match format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => {
            let (name, status, available) = (of("name"), of("status"), of("available"));
            writeln!(out, "{name}: {status}, {available} {} available", of("asset"))?;
        }
    }
    Ok(())
}
