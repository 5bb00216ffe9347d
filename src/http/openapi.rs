//! The public API described as OpenAPI 3.1: paths from the routing table, schemas from the types on
//! the wire, codes from their one table.
//!
//! A new route does not compile before `describe` has it. Its description is one function:
//! `with_token` adds the parts that all routes share, `refused` adds an answer for each status of
//! its codes.

mod recharges;
mod transactions;

use std::collections::BTreeMap;

use hyper::Method;
use serde_json::json;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, Paths,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{
    AllOfBuilder, Components, ComponentsBuilder, KnownFormat, Object, ObjectBuilder, OneOfBuilder,
    Schema, SchemaFormat, Type,
};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, Header, HttpMethod, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref,
    RefOr, Required,
};
use utoipa::{PartialSchema, ToSchema};

use super::idempotency;
use super::public::get::WAIT_MS_MAX;
use super::public::list::{LIMIT_DEFAULT, LIMIT_MAX};
use super::public::routes::{Public, ROUTES};
use super::recharge_event::RechargeEventBody;
use super::refusal::RefusalBody;
use super::schema::{PENDING, ReqIdText, StateName, text};
use super::transaction_event::TransactionEventBody;
use super::wire::{AssetsBody, BalancesBody, DetailBody, EventBody, SummariesBody, TransferBody};
use crate::validation::Draft;
use domain::code::Code;
use domain::transfer::{Direction, State};

/// The name of the one security scheme.
const BEARER: &str = "bearer";
/// The name of the answer to a method that a path does not have.
const METHOD_NOT_ALLOWED: &str = "MethodNotAllowed";
pub(super) const JSON: &str = "application/json";

/// The document.
pub fn document() -> OpenApi {
    let mut paths = Paths::new();
    for row in ROUTES.rows() {
        paths.add_path_operation(row.pattern, vec![method(&row.method)], describe(row.route));
    }
    let license = LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build();
    let info = InfoBuilder::new()
        .title(env!("CARGO_PKG_NAME"))
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(license))
        .description(Some(
            "Moves a user's money between the Funding account in PostgreSQL and the Spot account in UBSCore. \
             Amounts are decimal text. Every answer has an X-Request-Id. Headers beyond 16 KiB are answered 431 \
             without a body; any other path is answered 404 NOT_FOUND.",
        ))
        .build();
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components())).build()
}

pub(super) fn method(method: &Method) -> HttpMethod {
    match *method {
        Method::GET => HttpMethod::Get,
        Method::POST => HttpMethod::Post,
        Method::PUT => HttpMethod::Put,
        _ => unreachable!("no public route has the method {method}"),
    }
}

/// The operation of a route: parameters, body and answers.
fn describe(route: Public) -> Operation {
    match route {
        Public::Post => post_transfer(),
        Public::List => list_transfers(),
        Public::Get => get_transfer(),
        Public::Balances => get_balances(),
        Public::Assets => get_assets(),
        Public::Events => follow_events(),
        Public::OpenApi => get_openapi(),
        Public::PostTransaction => transactions::post(),
        Public::ListTransactions => transactions::list(),
        Public::GetTransaction => transactions::get(),
        Public::Prepare => transactions::prepare(),
        Public::Commit => transactions::commit(),
        Public::Abort => transactions::abort(),
        Public::PostRecharge => recharges::post(),
        Public::GetRecharge => recharges::get(),
        Public::RechargeHistory => recharges::history(),
        Public::CancelRecharge => recharges::cancel(),
        Public::ListRecharges => recharges::list(),
        Public::RechargeTotals => recharges::totals(),
        Public::Channels => recharges::channels(),
    }
}

fn post_transfer() -> Operation {
    let transfer = |description, state: &str| {
        let schema = narrowed::<TransferBody>("state", [state]);
        let link = LinkBuilder::new()
            .operation_id("getTransfer")
            .parameter("req_id", "$response.body#/req_id")
            .description("The state of the transfer.")
            .build();
        with_limits(answer(description, schema))
            .header("Idempotent-Replayed", replayed_header())
            .link("transfer", link)
            .build()
    };
    let body = ContentBuilder::new().schema(Some(Draft::reference())).example(Some(json!({
        "from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "100.00", "cid": "order-1",
    })));
    let body = RequestBodyBuilder::new()
        .required(Some(Required::True))
        .description(Some("At most 16 KiB."))
        .content(JSON, body.build())
        .build();
    let what = "Answers when the transfer has ended, or after `http.transfer_wait_ms`. A client that hangs up changes \
                nothing. The header `Idempotency-Key` is the same as `cid`. The same `cid` with the same body is the same transfer: the repeat is answered by its present \
                state, with `Idempotent-Replayed: true`; with another body it is refused.";
    let operation = with_token("postTransfer", "Transfer between Funding and Spot", what)
        .parameter(idempotency_key())
        .request_body(Some(body))
        .response("200", transfer("The target has credited.", State::Committed.name()))
        .response("202", transfer("Not final yet. Read it by its req_id.", PENDING));
    let read = [Code::InvalidRequest];
    let operation = operation
        .response("408", refusal("The body did not arrive in time.", &read).build())
        .response("413", refusal("The body is too large.", &read).build())
        .response("415", refusal("The body is not JSON by its type.", &read).build());
    let codes = [
        Code::Forbidden,
        Code::SameAccount,
        Code::InvalidAccountType,
        Code::UnsupportedAccountType,
        Code::InvalidAsset,
        Code::InvalidAmount,
        Code::PrecisionOverflow,
        Code::Overflow,
        Code::RateLimitExceeded,
        Code::DailyLimitExceeded,
        Code::DailyAmountExceeded,
        Code::DuplicateRequest,
        Code::ServiceHalted,
    ];
    // Refused before it was accepted, or by a participant: then with its req_id and where it ended.
    let ended: Vec<Code> = Code::of_service().filter(|code| code.http_status() == 422).collect();
    let refusal = refusal("The transfer is not allowed, or has ended without success.", &ended)
        .header("Idempotent-Replayed", replayed_header());
    let refusal = with_limits(refusal);
    refused(operation, &codes).response("422", refusal.build()).build()
}

fn list_transfers() -> Operation {
    let what = "Newest first, without a time window. A page is bounded in what it looks at, so that filters which \
                seldom match make short pages: only `next_cursor` null is the end. A cursor neither skips nor repeats \
                a transfer that was there when the walk began.";
    let limit = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(LIMIT_MAX))
        .default(Some(LIMIT_DEFAULT.into()));
    let cursor = text(r"^[0-9]{1,19}$");
    let directions = Direction::ALL.map(Direction::wire_name);
    let directions = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(directions));
    let operation = with_token("listTransfers", "The user's own transfers", what)
        .parameter(in_query("state", "Those in this state.", StateName::reference()))
        .parameter(in_query("asset", "Those of this asset.", symbol_schema()))
        .parameter(in_query("direction", "Those in this direction.", directions.build()))
        .parameter(in_query("cid", "The one with this idempotency key.", cid_schema()))
        .parameter(in_query("since", "Those accepted then or later.", time_schema()))
        .parameter(in_query("until", "Those accepted earlier.", time_schema()))
        .parameter(in_query("limit", "The most transfers of the page.", limit.build()))
        .parameter(in_query("cursor", "The next_cursor of the page before.", cursor))
        .response("200", answer("A page.", SummariesBody::reference()).build());
    refused(operation, &[Code::InvalidAsset]).build()
}

fn get_transfer() -> Operation {
    let what = "Of the token's user, or of any user where the token is an operator's. With `wait_ms` it is answered as \
                soon as the transfer is final, and at the latest after that time, 2 s before the request would time \
                out, or when the server stops, by its state then.";
    let wait = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(WAIT_MS_MAX))
        .default(Some(0.into()));
    let req_id = ParameterBuilder::new()
        .name("req_id")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The transfer's name."))
        .schema(Some(ReqIdText::reference()));
    let detail = narrowed::<DetailBody>("state", State::ALL.map(State::name));
    let operation = with_token("getTransfer", "One transfer, with its history", what)
        .parameter(req_id)
        .parameter(in_query("wait_ms", "How long to wait for a final state.", wait.build()))
        .response("200", answer("The transfer.", detail).build());
    refused(operation, &[Code::TransferNotFound]).build()
}

fn get_balances() -> Operation {
    let what = "Both accounts and what is in flight, by asset. Every answer sums exactly, even while transfers are under way.";
    let operation = with_token("getBalances", "The user's balances", what)
        .parameter(in_query("asset", "Only this asset.", symbol_schema()))
        .response("200", answer("The balances.", BalancesBody::reference()).build());
    refused(operation, &[Code::InvalidAsset]).build()
}

fn get_assets() -> Operation {
    let what = "The assets that can be transferred, and their limits.";
    let operation = with_token("getAssets", "All assets", what)
        .response("200", answer("The assets.", AssetsBody::reference()).build());
    refused(operation, &[]).build()
}

fn follow_events() -> Operation {
    let what = "Server-sent events (WHATWG HTML, 9.2), `event: transfer`: the steps of the user's own transfers, at \
                least once, and in order for each transfer. `event: recharge`: a change of a recharge of the user; \
                its data is a RechargeEvent. `event: transaction`: a transaction of a service that \
                is DONE or CANCELLED, with the legs of this user; its data is a TransactionEvent. The `id` of a stream is a \
                place, and has a second number once there was a transaction: a client that continues after its last \
                `id`, as it was sent, misses none. `event: gap`: the events in \
                between are deleted; read the lists of transfers and recharges. `event: end`: the stream ends because its token \
                has expired, the service stops, or the client is too slow. A line that begins with a colon shows \
                that the stream is alive. The header Last-Event-ID or `after` is the id to continue after; without \
                one, the stream begins with the next event.";
    let id = || text(r"^[0-9]{1,19}(\.[0-9]{1,19})?$");
    let header_id = ParameterBuilder::new()
        .name("Last-Event-ID")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("The last id that was received. Takes precedence over `after`."))
        .schema(Some(id()));
    let data = OneOfBuilder::new()
        .item(EventBody::reference())
        .item(TransactionEventBody::reference())
        .item(RechargeEventBody::reference());
    let stream = ContentBuilder::new().schema(Some(Schema::OneOf(data.build()))).build();
    let stream = ResponseBuilder::new()
        .description("The stream. The schema is of each event's data.")
        .header("X-Request-Id", header("The request's id, also in the log.", Type::String))
        .content("text/event-stream", stream);
    let operation =
        with_token("followEvents", "The user's transfers and recharges as they move", what)
            .parameter(header_id)
            .parameter(in_query(
                "after",
                "The last id that was received; 0: all stored events.",
                id(),
            ))
            .response("200", stream.build());
    refused(operation, &[Code::NotFound]).build()
}

fn get_openapi() -> Operation {
    let document = ObjectBuilder::new().schema_type(Type::Object);
    let operation = without_token("getOpenApi", "This document", "Needs no token.")
        .response("200", answer("OpenAPI 3.1.", document.build()).build());
    refused(operation, &[]).build()
}

/// The parts of every operation.
pub(super) fn without_token(id: &str, summary: &str, description: &str) -> OperationBuilder {
    let request_id = ParameterBuilder::new()
        .name("X-Request-Id")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Taken over into the answer and the log if it is 1 to 64 of A-Z a-z 0-9 _ . : -; otherwise one is made.",
        ))
        .schema(Some(Object::with_type(Type::String)));
    OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(summary))
        .description(Some(description))
        .parameter(request_id)
        .response("405", Ref::from_response_name(METHOD_NOT_ALLOWED))
}

/// The parts of every operation that needs a token.
pub(super) fn with_token(id: &str, summary: &str, description: &str) -> OperationBuilder {
    let unauthorized = refusal("The token is not accepted.", &[Code::Unauthorized])
        .header("WWW-Authenticate", header("The scheme: Bearer.", Type::String));
    without_token(id, summary, description)
        .security(SecurityRequirement::new(BEARER, [""; 0]))
        .response(Code::Unauthorized.http_status().to_string(), unauthorized.build())
}

/// Adds an answer for each status of these codes, and of the codes that every operation may answer.
pub(super) fn refused(operation: OperationBuilder, codes: &[Code]) -> OperationBuilder {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    let common = [Code::InvalidRequest, Code::Overloaded, Code::SystemError];
    for code in common.iter().chain(codes) {
        by_status.entry(code.http_status()).or_default().push(*code);
    }
    by_status.into_iter().fold(operation, |operation, (status, codes)| {
        let said: Vec<&str> = codes.iter().map(|code| code.message()).collect();
        operation.response(status.to_string(), refusal(&said.join(" "), &codes).build())
    })
}

/// A refusal by one of these codes.
pub(super) fn refusal(description: &str, codes: &[Code]) -> ResponseBuilder {
    let schema = narrowed::<RefusalBody<'_>>("code", codes.iter().map(|code| code.name()));
    let answer = answer(description, schema);
    let answered = |status| codes.iter().any(|code| code.http_status() == status);
    let answer = match answered(429) {
        true => with_limits(answer),
        false => answer,
    };
    match answered(429) || answered(503) {
        true => answer
            .header("Retry-After", header("Seconds until a retry can succeed.", Type::Integer)),
        false => answer,
    }
}

/// Adds the headers of the user's limits.
fn with_limits(answer: ResponseBuilder) -> ResponseBuilder {
    let policy = "The limits of the user, by window (draft-ietf-httpapi-ratelimit-headers).";
    answer.header("RateLimit-Policy", header(policy, Type::String)).header(
        "RateLimit",
        header("The rest of each limit, and when its window ends.", Type::String),
    )
}

/// A JSON answer.
pub(super) fn answer(description: &str, schema: impl Into<RefOr<Schema>>) -> ResponseBuilder {
    ResponseBuilder::new()
        .description(description)
        .header("X-Request-Id", header("The request's id, also in the log.", Type::String))
        .content(JSON, ContentBuilder::new().schema(Some(schema)).build())
}

pub(super) fn header(description: &str, kind: Type) -> Header {
    let schema = Object::with_type(kind);
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

fn replayed_header() -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["true"]));
    let description = "Present if the cid was used before: this is that transfer.";
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

/// The header that has the same meaning as `cid`.
fn idempotency_key() -> Parameter {
    ParameterBuilder::new()
        .name(idempotency::HEADER)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("The same as cid. If both are present, they must be equal."))
        .schema(Some(text("^([A-Za-z0-9_.:-]{1,64}|\"[A-Za-z0-9_.:-]{1,64}\")$")))
        .build()
}

pub(super) fn in_query(
    name: &str,
    description: &str,
    schema: impl Into<RefOr<Schema>>,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

/// A type with one property narrowed to these values.
fn narrowed<'a, T: Named>(
    property: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> RefOr<Schema> {
    let values: Vec<&str> = values.into_iter().collect();
    let property_schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values));
    let narrow = ObjectBuilder::new().property(property, property_schema);
    AllOfBuilder::new().item(T::reference()).item(narrow).into()
}

/// A type that the components hold.
pub(super) trait Named: ToSchema {
    /// A reference to it.
    fn reference() -> RefOr<Schema> {
        Ref::from_schema_name(Self::name()).into()
    }
}

impl<T: ToSchema> Named for T {}

fn components() -> Components {
    let mut schemas = Vec::new();
    collect::<Draft>(&mut schemas);
    collect::<TransferBody>(&mut schemas);
    collect::<SummariesBody>(&mut schemas);
    collect::<DetailBody>(&mut schemas);
    collect::<EventBody>(&mut schemas);
    collect::<TransactionEventBody>(&mut schemas);
    collect::<RechargeEventBody>(&mut schemas);
    collect::<BalancesBody>(&mut schemas);
    collect::<AssetsBody>(&mut schemas);
    collect::<RefusalBody<'_>>(&mut schemas);
    transactions::collect_all(&mut schemas);
    recharges::collect_all(&mut schemas);
    let token = "`ubscore token --user ID --dev` makes one for `serve --dev`.";
    components_of(schemas, token)
}

/// The components of a document with these types. `token`: how a stranger makes one.
pub(super) fn components_of(schemas: Vec<(String, RefOr<Schema>)>, token: &str) -> Components {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .bearer_format("JWT")
        .description(Some(token))
        .build();
    let not_allowed = refusal(Code::MethodNotAllowed.message(), &[Code::MethodNotAllowed])
        .header("Allow", header("The methods that the path answers.", Type::String));
    ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .response(METHOD_NOT_ALLOWED, not_allowed.build())
        .security_scheme(BEARER, SecurityScheme::Http(token))
        .build()
}

/// A type, and every type that it refers to.
pub(super) fn collect<T: ToSchema + PartialSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

fn symbol_schema() -> Object {
    let symbol = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    symbol.max_length(Some(domain::asset::SYMBOL_BYTES_MAX)).examples([json!("USDT")]).build()
}

fn cid_schema() -> Object {
    text("^[A-Za-z0-9_.:-]{1,64}$")
}

pub(super) fn time_schema() -> Object {
    let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
    ObjectBuilder::new().schema_type(Type::String).format(Some(format)).build()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;

    use super::*;

    fn written() -> Value {
        serde_json::to_value(document()).expect("strings and numbers")
    }

    /// Every reference of a document resolves, and every schema and response is referred to.
    pub(in crate::http) fn assert_referred(document: &Value) {
        let (mut references, mut open) = (Vec::new(), vec![document]);
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    references.extend(fields.get("$ref").and_then(Value::as_str));
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        for reference in &references {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        for kind in ["schemas", "responses"] {
            for name in document["components"][kind].as_object().expect("some").keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(references.contains(&reference.as_str()), "{reference}");
            }
        }
    }

    #[test]
    fn every_route_of_the_table_stands_in_the_document_with_its_answers() {
        let document = written();
        assert_eq!(document["openapi"], "3.1.0");
        let mut described = 0;
        for row in ROUTES.rows() {
            let operation = &document["paths"][row.pattern][row.method.as_str().to_lowercase()];
            assert!(operation["operationId"].is_string(), "{} {}", row.method, row.pattern);
            let responses = operation["responses"].as_object().expect("answers");
            for status in ["200", "400", "405", "503"] {
                assert!(responses.contains_key(status), "{} {status}", row.pattern);
            }
            let is_public = row.pattern == "/openapi.json";
            assert_eq!(operation["security"].is_null(), is_public, "{}", row.pattern);
            assert_eq!(responses.contains_key("401"), !is_public, "{}", row.pattern);
            described += 1;
        }
        let paths = document["paths"].as_object().expect("paths");
        let operations: usize = paths.values().filter_map(Value::as_object).map(|p| p.len()).sum();
        assert_eq!(operations, described, "no operation without a route");
    }

    #[test]
    fn every_reference_resolves_and_every_component_is_referred_to() {
        assert_referred(&written());
    }

    /// Goal: the document has no second opinion on codes. Method: their list, and each answer's
    /// codes against the table; a body that cannot be read has statuses of its own.
    #[test]
    fn codes_and_their_statuses_come_from_the_one_table() {
        let document = written();
        let all: Vec<&str> = Code::of_service().map(Code::name).collect();
        assert_eq!(document["components"]["schemas"]["Code"]["enum"], json!(all));
        let code = &document["components"]["schemas"]["Error"]["properties"]["code"]["$ref"];
        assert_eq!(code, "#/components/schemas/Code");
        let unreadable = [408, 413, 415].map(|status| (status, Code::InvalidRequest));
        let mut seen = 0;
        for row in ROUTES.rows() {
            let operation = &document["paths"][row.pattern][row.method.as_str().to_lowercase()];
            for (status, answer) in operation["responses"].as_object().expect("answers") {
                let narrow = &answer["content"][JSON]["schema"]["allOf"][1]["properties"]["code"];
                for name in narrow["enum"].as_array().into_iter().flatten() {
                    let code = name.as_str().and_then(Code::from_name).expect("a code");
                    let status: u16 = status.parse().expect("a status");
                    let is_known = code.http_status() == status;
                    assert!(is_known || unreadable.contains(&(status, code)), "{status} {code}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 30, "{seen} codes");
    }
}
