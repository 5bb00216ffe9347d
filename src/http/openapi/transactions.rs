//! The routes of services, described.

use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{ContentBuilder, Header, RefOr, Required};

use super::{
    JSON, LIMIT_DEFAULT, LIMIT_MAX, Named, WAIT_MS_MAX, answer, collect, in_query, refusal,
    refused, text, time_schema, with_token,
};
use crate::http::schema::{TransactionStateName, TxIdText};

use crate::http::transaction_body::{TransactionBody, TransactionsBody};
use crate::validation::transaction::{
    AbortDraft, CommitDraft, LegDraft, PlaceOfUser, PrepareDraft, ServiceDraft, TransactionDraft,
};
use domain::code::Code;

/// The example of a request.
const TX_ID: &str = "envelope-1";

/// Every type that these routes refer to.
pub(super) fn collect_all(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    collect::<TransactionDraft>(schemas);
    collect::<PrepareDraft>(schemas);
    collect::<CommitDraft>(schemas);
    collect::<AbortDraft>(schemas);
    collect::<LegDraft>(schemas);
    collect::<PlaceOfUser>(schemas);
    collect::<ServiceDraft>(schemas);
    collect::<TransactionBody>(schemas);
    collect::<TransactionsBody>(schemas);
    collect::<TxIdText>(schemas);
}

/// `POST /api/v1/transactions`.
pub(super) fn post() -> Operation {
    let what = "One round, in which all legs and participants take part or none. It answers when both stores have \
                booked, or after `wait_ms`. The same `tx_id` with the same body is the same transaction: the repeat is \
                answered by its present state, with `Idempotent-Replayed: true`; with another body it is refused.";
    let example = json!({"tx_id": TX_ID, "legs": [example_leg()]});
    let operation = with_token("postTransaction", "Move money of several users at once", what);
    round(operation.request_body(Some(body::<TransactionDraft>(Some(example)))))
}

/// `POST …/prepare`.
pub(super) fn prepare() -> Operation {
    let what = "The legs and participants of this round set apart all that they need. Nothing is booked before the \
                commit. It answers when the round is tried, or after `wait_ms`. A refused round is given back, and \
                those before it stay. The same round with the same body is answered by its present state.";
    let example = json!({"round": 1, "legs": [example_leg()], "decide": "caller"});
    let operation = with_token("prepareTransaction", "Set apart the money of a round", what);
    let operation = operation.parameter(in_path());
    round(operation.request_body(Some(body::<PrepareDraft>(Some(example)))))
}

/// `POST …/commit`.
pub(super) fn commit() -> Operation {
    let what = "The caller's decision. After `transaction_commit` in SQL it is the hint to go on at once. To commit \
                a committed one is the same answer.";
    let operation = with_token("commitTransaction", "Book all that is set apart", what);
    let operation = operation.parameter(in_path());
    let operation = operation.request_body(Some(body::<CommitDraft>(None)));
    let codes = [
        Code::Forbidden,
        Code::TransactionNotFound,
        Code::TransactionUntried,
        Code::TransactionDecided,
        Code::ServiceHalted,
    ];
    let ended = [Code::TransactionAborted, Code::TransactionExpired];
    refused(unreadable(done(operation)), &codes)
        .response("422", undone("It is aborted.", &ended).build())
        .build()
}

/// `POST …/abort`.
pub(super) fn abort() -> Operation {
    let what = "Gives back all that is set apart. To abort an aborted one is the same answer. A transaction that is not \
                known is written down as cancelled, so that a late round runs into it.";
    let operation = with_token("abortTransaction", "Give back all that is set apart", what);
    let operation = operation.parameter(in_path());
    let operation = operation.request_body(Some(body::<AbortDraft>(None)));
    let codes = [Code::Forbidden, Code::TransactionDecided, Code::ServiceHalted];
    refused(unreadable(done(operation)), &codes).build()
}

/// `GET …/{tx_id}`.
pub(super) fn get() -> Operation {
    let what = "With `wait_ms` it is answered as soon as its rounds are tried or it is final, and at the latest after \
                that time, 2 s before the request would time out, or when the server stops, by its state then.";
    let wait = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(WAIT_MS_MAX))
        .default(Some(0.into()));
    let operation = with_token("getTransaction", "One transaction of the service", what)
        .parameter(in_path())
        .parameter(in_query("wait_ms", "How long to wait.", wait.build()))
        .response("200", answer("The transaction.", TransactionBody::reference()).build());
    refused(operation, &[Code::Forbidden, Code::TransactionNotFound]).build()
}

/// `GET /api/v1/transactions`.
pub(super) fn list() -> Operation {
    let what = "Newest first. A cursor neither skips nor repeats a transaction that was there when the walk began.";
    let limit = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(LIMIT_MAX))
        .default(Some(LIMIT_DEFAULT.into()));
    let state = TransactionStateName::reference();
    let cursor = text(r"^[0-9]{1,19}$");
    let operation = with_token("listTransactions", "The service's own transactions", what)
        .parameter(in_query("state", "Those in this state.", state))
        .parameter(in_query("since", "Those accepted then or later.", time_schema()))
        .parameter(in_query("until", "Those accepted earlier.", time_schema()))
        .parameter(in_query("limit", "The most transactions of the page.", limit.build()))
        .parameter(in_query("cursor", "The next_cursor of the page before.", cursor))
        .response("200", answer("A page.", TransactionsBody::reference()).build());
    refused(operation, &[Code::Forbidden]).build()
}

/// The answers of a round.
fn round(operation: OperationBuilder) -> Operation {
    let codes = [
        Code::Forbidden,
        Code::UnsupportedAccountType,
        Code::InvalidPosting,
        Code::InvalidAsset,
        Code::InvalidAmount,
        Code::PrecisionOverflow,
        Code::Overflow,
        Code::UnknownParticipant,
        Code::TxIdConflict,
        Code::TransactionDecided,
        Code::TransactionUntried,
        Code::ServiceHalted,
    ];
    // Refused before it was accepted, or by a participant: then with the transaction.
    let ended: Vec<Code> = Code::of_service().filter(|code| code.http_status() == 422).collect();
    let undone = undone("The round is not allowed, or was refused.", &ended);
    refused(unreadable(done(operation)), &codes).response("422", undone.build()).build()
}

/// Adds the answers if it is done, or under way.
fn done(operation: OperationBuilder) -> OperationBuilder {
    let told = |description| {
        let told = answer(description, TransactionBody::reference());
        told.header("Idempotent-Replayed", replayed()).build()
    };
    operation
        .response("200", told("The awaited thing has happened."))
        .response("202", told("Not yet. Read it by its tx_id."))
}

/// Adds the answers to a body that cannot be read.
fn unreadable(operation: OperationBuilder) -> OperationBuilder {
    let read = [Code::InvalidRequest];
    operation
        .response("408", refusal("The body did not arrive in time.", &read).build())
        .response("413", refusal("The body is too large.", &read).build())
        .response("415", refusal("The body is not JSON by its type.", &read).build())
}

fn undone(description: &str, codes: &[Code]) -> ResponseBuilder {
    refusal(description, codes).header("Idempotent-Replayed", replayed())
}

fn replayed() -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["true"]));
    let description = "Present if an earlier request has done it.";
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

fn body<T: ToSchema>(example: Option<serde_json::Value>) -> RequestBody {
    let content = ContentBuilder::new().schema(Some(T::reference())).example(example);
    RequestBodyBuilder::new()
        .required(Some(Required::True))
        .description(Some("At most 16 KiB."))
        .content(JSON, content.build())
        .build()
}

fn example_leg() -> serde_json::Value {
    json!({
        "from": {"account": "SPOT", "user_id": 1001}, "to": {"account": "SPOT", "user_id": 1002},
        "asset": "USDT", "amount": "10",
    })
}

fn in_path() -> Parameter {
    ParameterBuilder::new()
        .name("tx_id")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The name that the service gave."))
        .schema(Some(TxIdText::reference()))
        .build()
}
