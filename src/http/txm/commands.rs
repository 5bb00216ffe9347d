//! Commands of operators: each is a row, and its answer waits for the owner of the signer.

use std::time::Duration;

use alloy_primitives::{Address, B256};
use chain::tx::TxId;
use hyper::StatusCode;
use serde_json::json;
use txm::store::CommandWish;

use super::body::{FillDraft, ReasonDraft, ResolveDraft};
use super::routes::Wished;
use super::shown::TxBody;
use super::signers::{check, known};
use super::token::{TxCaller, admin};
use super::transactions::id;
use super::{TxmService, store_away};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid};
use crate::http::request::{Call, parse, query};
use crate::postgres::txm::details::{CommandState, Deed, NewCommand};
use domain::code::Code;

/// The longest wait for the owner; then the answer is 202.
const OWNER_WAIT: Duration = Duration::from_secs(10);

/// `POST /admin/v1/tx/{tx_id}/resubmit`, `cancel` and `fill`.
pub(super) async fn command(
    service: &TxmService,
    wished: Wished,
    tx_id: &str,
    call: Call,
) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let id = id(tx_id)?;
    let request_id = call.request_id.clone();
    let draft: ReasonDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let wish = match wished {
        Wished::Resubmit => CommandWish::Resubmit,
        Wished::Cancel => CommandWish::Cancel,
        Wished::Fill => CommandWish::Fill,
    };
    let signer = open_signer(service, id).await?;
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let command = NewCommand { signer, tx: Some(id), wish, deed };
    carry_out(service, &command, None, &request_id).await
}

/// `POST /admin/v1/tx/{tx_id}/resolve`: with `hash`, the transaction that may have the nonce is
/// looked at. With `paid`, two operators end an unproven one.
pub(super) async fn resolve(service: &TxmService, tx_id: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let id = id(tx_id)?;
    let second = TxCaller::second(&service.intake, &call, user);
    let request_id = call.request_id.clone();
    let draft: ResolveDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let (wish, second) = match (&draft.hash, draft.paid) {
        (Some(hash), None) => {
            let hash = hash.parse::<B256>().map_err(|_| invalid("hash is not 0x and 64 digits."));
            (CommandWish::ResolveHash(hash?), None)
        }
        (None, Some(is_paid)) => (CommandWish::Resolve { is_paid }, Some(second?)),
        _ => return Err(invalid("Give hash, or paid.")),
    };
    let signer = open_signer(service, id).await?;
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let command = NewCommand { signer, tx: Some(id), wish, deed };
    carry_out(service, &command, second, &request_id).await
}

/// `POST /admin/v1/signers/{signer}/release`: its owner gives it back, drained.
pub(super) async fn release(service: &TxmService, signer: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let signer = known(service, signer).await?;
    let request_id = call.request_id.clone();
    let draft: ReasonDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let command = NewCommand { signer, tx: None, wish: CommandWish::Release, deed };
    carry_out(service, &command, None, &request_id).await
}

/// `POST /admin/v1/signers/{signer}/fill`: a nonce that a jump passed over, and that the chain has
/// not mined, gets a row that fills it.
pub(super) async fn fill(service: &TxmService, signer: &str, call: Call) -> Outcome {
    let user = TxCaller::admin(&service.intake, &call)?;
    query(&call, "")?;
    let signer = known(service, signer).await?;
    let request_id = call.request_id.clone();
    let draft: FillDraft = parse(&service.intake.body(call).await?)?;
    check(&draft.reason)?;
    let actor = admin(user);
    let deed = Deed { actor: &actor, reason: &draft.reason };
    let wish = CommandWish::FillJumped { nonce: draft.nonce };
    let command = NewCommand { signer, tx: None, wish, deed };
    carry_out(service, &command, None, &request_id).await
}

/// The signer of a transaction that has not ended.
async fn open_signer(service: &TxmService, id: TxId) -> Result<Address, Refusal> {
    let details = service.reads.get(id).await.map_err(store_away)?.ok_or(Code::TxNotFound)?;
    match details.tx.state.is_terminal() {
        true => Err(Code::NotCancellable.into()),
        false => Ok(details.tx.new.signer),
    }
}

/// Stores a command and waits for its end. `second`: the second operator, if it needs one.
async fn carry_out(
    service: &TxmService,
    command: &NewCommand<'_>,
    second: Option<u64>,
    request_id: &str,
) -> Outcome {
    let number = service.reads.command(command).await.map_err(store_away)?;
    if let Some(second) = second {
        let is_seconded = service.reads.second(number, &admin(second)).await.map_err(store_away)?;
        if !is_seconded {
            let message = "The second operator is the first one.";
            return Err(Refusal::because(Code::Forbidden, message));
        }
    }
    service.desk.wake(command.signer);
    let begun = service.clock.monotonic_ns();
    let wait = OWNER_WAIT.min(service.wait_max);
    loop {
        let state = service.reads.command_state(number).await.map_err(store_away)?;
        let passed = Duration::from_nanos(service.clock.monotonic_ns() - begun);
        match state {
            Some(CommandState::Done) => break,
            Some(CommandState::Refused(why)) => {
                let message = format!("The owner of the signer refused it: {why}.");
                return Err(Refusal::because(Code::NotCancellable, message));
            }
            Some(CommandState::Open | CommandState::Unseconded) | None => {}
        }
        if passed >= wait || !service.pause().await {
            let body = json!({"command": number, "state": "OPEN"});
            return Ok(json(StatusCode::ACCEPTED, &body, request_id));
        }
    }
    let mut body = json!({"command": number, "state": "DONE"});
    if let Some(id) = command.tx
        && let Some(details) = service.reads.get(id).await.map_err(store_away)?
    {
        let tx = serde_json::to_value(TxBody::new(&details.tx));
        body["transaction"] = tx.expect("plain values");
    }
    Ok(json(StatusCode::OK, &body, request_id))
}
