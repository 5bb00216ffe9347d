//! `ubscore signer`: the signers of the transaction manager.

use std::collections::BTreeMap;
use std::io::Write;

use chain::payload::address_text;
use serde_json::{Value, json};

use crate::cli::{Imported, OperatorArgs, SignerCommand};
use crate::clock::Clock;
use crate::commands::listing::{rows, write_rows};
use crate::commands::ops::Ops;
use crate::commands::table::text;
use crate::exit::Exit;
use crate::format::Format;

/// The columns of the list.
const HEAD: [&str; 7] = ["SIGNER", "KIND", "STATUS", "OWNER", "NONCE", "OPEN", "BALANCE"];

/// Runs one of the commands.
///
/// # Errors
/// The node cannot be asked, or it refuses.
pub fn run(
    command: &SignerCommand,
    clock: &impl Clock,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        SignerCommand::List(access) => {
            let answer = Ops::of_node(access, clock)?.get("list", "signers")?;
            write_rows(rows(&answer, "signers"), access.format, "no signers", (&HEAD, row), out)?;
        }
        SignerCommand::Add(args) => {
            let signer = address_text(&args.signer);
            let reason = &args.operator.reason;
            let body = json!({"signer": signer, "kind": args.kind, "reason": reason});
            let ops = Ops::of_node(&args.operator.access, clock)?;
            let answer = ops.post("add", "signers", &body)?;
            let nonce = text(&answer["nextNonce"]);
            let words = match answer["added"] == json!(true) {
                true => format!("{signer}: added, next nonce {nonce}"),
                false => format!("{signer}: it was there already"),
            };
            tell(&args.operator, &answer, &words, out)?;
        }
        SignerCommand::Suspend(args) => {
            let signer = address_text(&args.signer);
            let body = json!({"reason": args.operator.reason});
            let ops = Ops::of_node(&args.operator.access, clock)?;
            let answer = ops.post("suspend", &format!("signers/{signer}/suspend"), &body)?;
            tell(&args.operator, &answer, &format!("{signer}: suspended"), out)?;
        }
        SignerCommand::Resume(args) => {
            let signer = address_text(&args.signer);
            let body = json!({"reason": args.operator.reason, "suspension": args.suspension});
            let ops = Ops::of_node(&args.operator.access, clock)?;
            let ops = ops.approved_by(args.approver_token_file.as_deref())?;
            let answer = ops.post("resume", &format!("signers/{signer}/resume"), &body)?;
            let words = match answer["changed"] == json!(true) {
                true => format!("{signer}: {} is lifted", args.suspension),
                false => format!("{signer}: it has no suspension {}", args.suspension),
            };
            tell(&args.operator, &answer, &words, out)?;
        }
        SignerCommand::Adopt(args) => {
            let signer = address_text(&args.signer);
            let foreign: BTreeMap<String, String> = args
                .foreign
                .iter()
                .map(|(nonce, hash)| (nonce.to_string(), hash.to_string()))
                .collect();
            let import = |it: &Imported| {
                json!({
                    "hash": it.hash.to_string(), "requestId": it.request_id,
                    "businessKey": it.business_key, "gas": it.gas, "data": it.data,
                })
            };
            let import: Vec<Value> = args.import.iter().map(import).collect();
            let reason = &args.operator.reason;
            let body = json!({
                "reason": reason, "foreign": foreign, "import": import, "pay": args.pay,
                "drop": args.drop, "rest": args.rest,
            });
            let ops = Ops::of_node(&args.operator.access, clock)?;
            let ops = ops.approved_by(Some(&args.approver_token_file))?;
            let answer = ops.post("adopt", &format!("signers/{signer}/adopt"), &body)?;
            let next = text(&answer["nextNonce"]);
            let words = match answer["waitsForNonce"].as_u64() {
                None => format!("{signer}: adopted, next nonce {next}"),
                Some(seen) => format!(
                    "{signer}: next nonce {next}, and still suspended: nonces up to {last} were \
                     signed before, and may be under way. Wait until they are mined, or fill them: \
                     ubscore tx fill-gap --signer {signer} --nonce {last}. Then adopt again.",
                    last = seen - 1
                ),
            };
            tell(&args.operator, &answer, &words, out)?;
        }
        SignerCommand::Release(args) => {
            let signer = address_text(&args.signer);
            let body = json!({"reason": args.operator.reason});
            let ops = Ops::of_node(&args.operator.access, clock)?;
            let answer = ops.post("release", &format!("signers/{signer}/release"), &body)?;
            let state = text(&answer["state"]);
            tell(&args.operator, &answer, &format!("{signer}: release {state}"), out)?;
        }
    }
    Ok(Exit::Done)
}

fn row(signer: &Value) -> Vec<String> {
    let suspensions = rows(signer, "suspensions").iter().map(|one| text(&one["reason"]));
    let status = match suspensions.collect::<Vec<_>>().join(",") {
        names if names.is_empty() => text(&signer["status"]),
        names => names,
    };
    let of = |key: &str| text(&signer[key]);
    let [address, kind] = [of("signer"), of("kind")];
    let [owner, nonce] = [of("ownerNode"), of("nextNonce")];
    let [open, balance] = [of("openRows"), of("balanceWei")];
    vec![address, kind, status, owner, nonce, open, balance]
}

/// Prints an answer as JSON, or in words.
pub(super) fn tell(
    operator: &OperatorArgs,
    answer: &Value,
    words: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    match operator.access.format {
        Format::Json => writeln!(out, "{answer}")?,
        Format::Text => writeln!(out, "{words}")?,
    }
    Ok(())
}
