//! The routes of recharges.

use serde_json::json;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{ContentBuilder, Header, RefOr, Required};

use super::{
    JSON, LIMIT_DEFAULT, LIMIT_MAX, Named, WAIT_MS_MAX, answer, collect, idempotency_key, in_query,
    refusal, refused, text, time_schema, with_limits, with_token,
};
use crate::http::recharge_body::{
    RechargeBody, RechargeChannelsBody, RechargeHistoryBody, RechargeTotalsBody, RechargesBody,
};
use crate::http::schema::{RechargeIdText, RechargeStateName};
use crate::validation::recharge::RechargeRequest;
use domain::code::Code;

/// Every type that these routes refer to.
pub(super) fn collect_all(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    collect::<RechargeRequest>(schemas);
    collect::<RechargesBody>(schemas);
    collect::<RechargeHistoryBody>(schemas);
    collect::<RechargeTotalsBody>(schemas);
    collect::<RechargeChannelsBody>(schemas);
}

/// `POST /api/v1/recharge`.
pub(super) fn post() -> Operation {
    let what = "Makes an order to recharge the wallet, and answers when the channel has taken it, or after \
                `recharge.create_wait_ms`. The payer then pays at the channel by `pay`. The same `idem_key` with the \
                same body is the same order: the repeat is answered by its present state, with \
                `Idempotent-Replayed: true`; with another body it is refused. The key is required, here or as the \
                header `Idempotency-Key`.";
    let body =
        ContentBuilder::new().schema(Some(RechargeRequest::reference())).example(Some(json!({
            "asset": "CNY", "amount": "100.00", "channel": "wechat", "idem_key": "topup-1",
        })));
    let body = RequestBodyBuilder::new()
        .required(Some(Required::True))
        .description(Some("At most 16 KiB."))
        .content(JSON, body.build())
        .build();
    let told = |description| {
        let told = answer(description, RechargeBody::reference());
        told.header("Idempotent-Replayed", replayed()).build()
    };
    let read = [Code::InvalidRequest];
    let operation = of_recharges("postRecharge", "Recharge the wallet", what)
        .parameter(idempotency_key())
        .request_body(Some(body))
        .response("200", told("The key was used before: this is that order."))
        .response("201", told("It is made, and the channel has taken it."))
        .response("202", told("It is made. The channel has not answered yet: read it by its name."))
        .response("408", refusal("The body did not arrive in time.", &read).build())
        .response("413", refusal("The body is too large.", &read).build())
        .response("415", refusal("The body is not JSON by its type.", &read).build());
    let codes = [
        Code::NotFound,
        Code::Forbidden,
        Code::InvalidAccountType,
        Code::UnsupportedAccountType,
        Code::InvalidChannel,
        Code::InvalidAsset,
        Code::InvalidAmount,
        Code::PrecisionOverflow,
        Code::Overflow,
        Code::RateLimitExceeded,
        Code::TooManyOpen,
        Code::DuplicateRequest,
        Code::ServiceHalted,
    ];
    let ended = [
        Code::ChannelSuspended,
        Code::ChannelRefused,
        Code::AssetSuspended,
        Code::TransferNotAllowed,
        Code::AmountTooSmall,
        Code::AmountTooLarge,
        Code::PromotionNotApplicable,
    ];
    let ended = refusal("The order is not allowed, or the channel has refused it.", &ended)
        .header("Idempotent-Replayed", replayed());
    refused(operation, &codes).response("422", with_limits(ended).build()).build()
}

/// `GET /api/v1/recharge/{id}`.
pub(super) fn get() -> Operation {
    let what = "Of the token's user, or of any user where the token is an operator's; `pay` is shown to the owner alone. \
                With `wait_ms` the channel is asked, and it is answered as soon as the order has moved on, and at the \
                latest after that time, 2 s before the request would time out, or when the server stops.";
    let wait = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(WAIT_MS_MAX))
        .default(Some(0.into()));
    let operation = of_recharges("getRecharge", "One recharge", what)
        .parameter(in_path())
        .parameter(in_query("wait_ms", "How long to wait for another state.", wait.build()))
        .response("200", answer("The recharge.", RechargeBody::reference()).build());
    refused(operation, &[Code::NotFound, Code::RechargeNotFound]).build()
}

/// `GET …/history`.
pub(super) fn history() -> Operation {
    let what = "The states that it has passed, and the wish to close it, in order.";
    let operation = of_recharges("getRechargeHistory", "The history of a recharge", what)
        .parameter(in_path())
        .response("200", answer("The history.", RechargeHistoryBody::reference()).build());
    refused(operation, &[Code::NotFound, Code::RechargeNotFound]).build()
}

/// `POST …/cancel`.
pub(super) fn cancel() -> Operation {
    let what = "Writes down the wish to close it, and answers when the channel has closed it, or after \
                `recharge.create_wait_ms`. A payment that is under way may still win. It has no body. To cancel a \
                CLOSED one is the same answer.";
    let told = |description| answer(description, RechargeBody::reference()).build();
    let operation = of_recharges("cancelRecharge", "Cancel a recharge", what)
        .parameter(in_path())
        .response("200", told("It is CLOSED."))
        .response(
            "202",
            told("It is to be closed, or has a payment that is held. Read it by its name."),
        );
    let codes = [
        Code::NotFound,
        Code::Forbidden,
        Code::RechargeNotFound,
        Code::RechargePaid,
        Code::ServiceHalted,
    ];
    refused(operation, &codes).build()
}

/// `GET /api/v1/recharges`.
pub(super) fn list() -> Operation {
    let what = "Newest first, without a time window. A page is bounded in what it looks at, so that filters which \
                seldom match make short pages: only `next_cursor` null is the end. A cursor neither skips nor repeats \
                a recharge that was there when the walk began.";
    let limit = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(LIMIT_MAX))
        .default(Some(LIMIT_DEFAULT.into()));
    let operation = of_recharges("listRecharges", "The user's own recharges", what)
        .parameter(in_query("state", "Those in this state.", RechargeStateName::reference()))
        .parameter(in_query("channel", "Those of this channel.", text("^[a-z0-9-]{1,16}$")))
        .parameter(in_query("since", "Those made then or later.", time_schema()))
        .parameter(in_query("until", "Those made earlier.", time_schema()))
        .parameter(in_query("limit", "The most recharges of the page.", limit.build()))
        .parameter(in_query(
            "cursor",
            "The next_cursor of the page before.",
            RechargeIdText::reference(),
        ))
        .response("200", answer("A page.", RechargesBody::reference()).build());
    refused(operation, &[Code::NotFound]).build()
}

/// `GET /api/v1/recharges/totals`.
pub(super) fn totals() -> Operation {
    let what = "By asset: credited payments, bonus, payments that were given back, and the number of credits.";
    let operation = of_recharges("getRechargeTotals", "The sums of the user's recharges", what)
        .response("200", answer("The sums.", RechargeTotalsBody::reference()).build());
    refused(operation, &[Code::NotFound]).build()
}

/// `GET /api/v1/channels`.
pub(super) fn channels() -> Operation {
    let what = "The channels, with the asset, the bounds and the step of an order.";
    let operation = of_recharges("getChannels", "All channels", what)
        .response("200", answer("The channels.", RechargeChannelsBody::reference()).build());
    refused(operation, &[Code::NotFound]).build()
}

/// An operation that is there only where recharges are on.
fn of_recharges(id: &str, summary: &str, what: &str) -> OperationBuilder {
    let what = format!("{what} 404 NOT_FOUND where recharges are off.");
    with_token(id, summary, &what)
}

fn replayed() -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["true"]));
    let description = "Present if the key was used before: this is that order.";
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

fn in_path() -> Parameter {
    ParameterBuilder::new()
        .name("id")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The recharge's name."))
        .schema(Some(RechargeIdText::reference()))
        .build()
}
