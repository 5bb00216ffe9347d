//! The clients' listener of a node described as OpenAPI 3.1: paths from its table of routes,
//! schemas from the types on the wire, codes from their one table.
//!
//! A new route does not compile before `describe` has it.

use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::path::{
    Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, Paths,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{Object, ObjectBuilder, Schema, Type};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required,
};

use super::body::{QueryDraft, ReasonDraft, RequestDraft, TxDraft};
use super::routes::{CLIENT_ROUTES, ForClients};
use super::shown::{FeedBody, SignersBody, TxBody, TxDetailBody, TxListBody, TxQueryBody};
use super::transactions::{LIMIT_DEFAULT, LIMIT_MAX, WAIT_MS_MAX};
use crate::http::openapi::{
    JSON, Named, answer, collect, components_of, header, in_query, method, refusal, refused,
    time_schema, with_token, without_token,
};
use crate::http::schema::{ChainAccountText, ChainKeyText, ChainStateName, ChainTxIdText, text};
use domain::code::Code;

/// The document.
pub(super) fn document() -> OpenApi {
    let mut paths = Paths::new();
    for row in CLIENT_ROUTES.rows() {
        paths.add_path_operation(row.pattern, vec![method(&row.method)], describe(row.route));
    }
    let license = LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build();
    let info = InfoBuilder::new()
        .title("ubscore txm")
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(license))
        .description(Some(
            "Sends transactions of its signers to an EVM chain, and follows them to their end. Values are text in wei or \
             in the smallest units of a token. Every answer has an X-Request-Id. Any node answers every request, but for \
             a new transaction without `\"nonce\": \"later\"`, which the owner of its signer takes.",
        ))
        .build();
    let mut schemas = vec![("Error".to_owned(), error_schema()), ("Code".to_owned(), codes())];
    collect::<TxDraft>(&mut schemas);
    collect::<RequestDraft>(&mut schemas);
    collect::<QueryDraft>(&mut schemas);
    collect::<ReasonDraft>(&mut schemas);
    collect::<TxBody>(&mut schemas);
    collect::<TxDetailBody>(&mut schemas);
    collect::<TxListBody>(&mut schemas);
    collect::<TxQueryBody>(&mut schemas);
    collect::<FeedBody>(&mut schemas);
    collect::<SignersBody>(&mut schemas);
    collect::<ChainAccountText>(&mut schemas);
    let token = "`ubscore token --txm --service NAME --signers ADDRESS --dev` makes one for a node \
                 of `--dev`.";
    let components = components_of(schemas, token);
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build()
}

/// The operation of a route.
fn describe(route: ForClients) -> Operation {
    match route {
        ForClients::Create => create(),
        ForClients::List => list(),
        ForClients::Get => get(),
        ForClients::ByRequest => by_request(),
        ForClients::Query => query(),
        ForClients::Cancel => cancel(),
        ForClients::CancelByRequest => cancel_by_request(),
        ForClients::Events => events(),
        ForClients::Signers => signers(),
        ForClients::Suspend => halt("suspendSigner", "Suspend a signer", "Sets"),
        ForClients::Resume => halt("resumeSigner", "Lift the caller's suspension", "Lifts"),
        ForClients::OpenApi => openapi(),
    }
}

fn create() -> Operation {
    let what = "The same requestId with the same body is the same transaction, for ever: its repeat is answered by its \
                present state, with `Idempotent-Replayed: true`, on any node; with another body it is refused. A businessKey is paid \
                once over all signers. 409 NOT_LEADER names the owner's URL: send the same request there.";
    let example = json!({
        "signer": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "requestId": "pay-1",
        "payload": {"to": "0x9965507d1a55bcc2695c58ba16fb37d819b0a4dc", "value": "1"},
    });
    let operation = with_token("postTx", "Make a transaction", what)
        .request_body(Some(body::<TxDraft>(Some(example))))
        .response("202", short("It is stored, and is not at its end."))
        .response("200", replayed("It was there already: its present state."));
    let codes = [
        Code::InvalidAddress,
        Code::InvalidAmount,
        Code::Forbidden,
        Code::SignerUnknown,
        Code::TxWouldRevert,
        Code::SignerPolicy,
        Code::SignerSuspended,
    ];
    let conflict = [Code::NotLeader, Code::DuplicateRequest];
    let owner = "With NOT_LEADER: the URL of the node that takes it.";
    let conflict = refusal("Another node owns the signer, or the name was used.", &conflict)
        .header("X-Signer-Owner", header(owner, Type::String))
        .header("Retry-After", header("Seconds until a retry can succeed.", Type::Integer));
    refused(unreadable(operation), &codes).response("409", conflict.build()).build()
}

fn list() -> Operation {
    let what = "Newest first. A cursor neither skips nor repeats a transaction that was there when the walk began. A \
                service names one of its signers.";
    let operation = with_token("listTxs", "Transactions", what)
        .parameter(in_query("signer", "Those of this signer.", ChainAccountText::reference()))
        .parameter(in_query("state", "Those in this state.", ChainStateName::reference()))
        .parameter(in_query("since", "Those made then or later.", time_schema()))
        .parameter(in_query("limit", "The most of the page.", limit()))
        .parameter(in_query(
            "cursor",
            "The next_cursor of the page before.",
            ChainTxIdText::reference(),
        ))
        .response("200", answer("A page.", TxListBody::reference()).build());
    refused(operation, &[Code::InvalidAddress, Code::Forbidden]).build()
}

fn get() -> Operation {
    let operation = with_token("getTx", "One transaction, with all that is kept of it", WAITS)
        .parameter(tx_id())
        .parameter(wait())
        .response("200", answer("The transaction.", TxDetailBody::reference()).build());
    refused(operation, &[Code::Forbidden, Code::TxNotFound]).build()
}

fn by_request() -> Operation {
    let operation = with_token("getTxByRequest", "The transaction of a request", WAITS)
        .parameter(required(in_query("signer", "The signer.", ChainAccountText::reference())))
        .parameter(required(in_query("requestId", "The client's id.", ChainKeyText::reference())))
        .parameter(wait())
        .response("200", answer("The transaction.", TxDetailBody::reference()).build());
    refused(operation, &[Code::InvalidAddress, Code::Forbidden, Code::TxNotFound]).build()
}

fn query() -> Operation {
    let what = "One answer for each name, in their order; null: there is none.";
    let operation = with_token("queryTxs", "Many transactions by their names", what)
        .request_body(Some(body::<QueryDraft>(None)))
        .response("200", answer("The transactions.", TxQueryBody::reference()).build());
    refused(unreadable(operation), &[Code::InvalidAddress, Code::Forbidden]).build()
}

fn cancel() -> Operation {
    let what = "A wish, never a promise: one that is sent may still be mined first. Its end tells. A body is not read.";
    let operation = with_token("cancelTx", "Cancel a transaction", what)
        .parameter(tx_id())
        .response("202", short("The owner will try."));
    let codes = [Code::Forbidden, Code::TxNotFound, Code::NotCancellable, Code::SignerSuspended];
    refused(operation, &codes).build()
}

fn cancel_by_request() -> Operation {
    let what = "The same by the client's id. One that is not known is stored as FAILED, so that a late POST of it finds \
                that and pays nothing.";
    let operation = with_token("cancelTxByRequest", "Cancel the transaction of a request", what)
        .request_body(Some(body::<RequestDraft>(None)))
        .response("200", short("It has ended without a nonce."))
        .response("202", short("The owner will try."));
    let codes = [
        Code::InvalidAddress,
        Code::Forbidden,
        Code::SignerUnknown,
        Code::NotCancellable,
        Code::SignerSuspended,
    ];
    refused(unreadable(operation), &codes).build()
}

fn events() -> Operation {
    let what = "Every change of every transaction, in an order that never changes, at least once. `seq` counts the events \
                of one transaction without holes. A service gets those of its signers.";
    let operation = with_token("readTxEvents", "The feed", what)
        .parameter(in_query(
            "after",
            "The next of the answer before.",
            text(r"^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$"),
        ))
        .parameter(in_query("limit", "The most events.", limit()))
        .parameter(wait())
        .response("200", answer("Events.", FeedBody::reference()).build());
    refused(operation, &[Code::Forbidden]).build()
}

fn signers() -> Operation {
    let operation = with_token("listSigners", "Signers", "A service gets its own.")
        .response("200", answer("The signers.", SignersBody::reference()).build());
    refused(operation, &[Code::Forbidden]).build()
}

fn halt(id: &str, summary: &str, verb: &str) -> Operation {
    let what = format!(
        "{verb} the suspension `halt/NAME` of the calling service, and no other. A suspended signer \
         signs no payment."
    );
    let signer = in_path("signer", "The signer.", ChainAccountText::reference());
    let operation = with_token(id, summary, &what)
        .parameter(signer)
        .request_body(Some(body::<ReasonDraft>(None)))
        .response("200", answer("The suspension as it is now.", halted()).build());
    let codes = [Code::InvalidAddress, Code::Forbidden, Code::SignerUnknown];
    refused(unreadable(operation), &codes).build()
}

fn openapi() -> Operation {
    let document = ObjectBuilder::new().schema_type(Type::Object);
    let operation = without_token("getOpenApi", "This document", "Needs no token.")
        .response("200", answer("OpenAPI 3.1.", document.build()).build());
    refused(operation, &[]).build()
}

const WAITS: &str = "With `waitMs` it is answered as soon as it is final, and at the latest after that time, 2 s before \
                     the request would time out, or when the node stops, by its state then.";

/// An answer with a transaction in short.
fn short(description: &str) -> utoipa::openapi::Response {
    answer(description, TxBody::reference()).build()
}

fn replayed(description: &str) -> utoipa::openapi::Response {
    let told = "true: an earlier request has made it.";
    answer(description, TxBody::reference())
        .header("Idempotent-Replayed", header(told, Type::String))
        .build()
}

/// Adds the answers to a body that cannot be read.
fn unreadable(operation: OperationBuilder) -> OperationBuilder {
    let read = [Code::InvalidRequest];
    operation
        .response("408", refusal("The body did not arrive in time.", &read).build())
        .response("413", refusal("The body is too large.", &read).build())
        .response("415", refusal("The body is not JSON by its type.", &read).build())
}

fn body<T: ToSchema>(example: Option<serde_json::Value>) -> RequestBody {
    let content = ContentBuilder::new().schema(Some(T::reference())).example(example);
    RequestBodyBuilder::new()
        .required(Some(Required::True))
        .description(Some("At most 128 KiB."))
        .content(JSON, content.build())
        .build()
}

fn in_path(name: &str, description: &str, schema: impl Into<RefOr<Schema>>) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

fn tx_id() -> Parameter {
    in_path("tx_id", "The name that the answer to POST has.", ChainTxIdText::reference())
}

fn required(parameter: Parameter) -> Parameter {
    ParameterBuilder::from(parameter).required(Required::True).build()
}

fn wait() -> Parameter {
    let wait = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(WAIT_MS_MAX))
        .default(Some(0.into()));
    in_query("waitMs", "How long to wait.", wait.build())
}

fn limit() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(LIMIT_MAX))
        .default(Some(LIMIT_DEFAULT.into()))
        .build()
}

/// The answer to `suspend` and `resume`.
fn halted() -> Object {
    let flag = || ObjectBuilder::new().schema_type(Type::Boolean);
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("signer", ChainAccountText::reference())
        .property("suspension", Object::with_type(Type::String))
        .property("suspended", flag())
        .property("changed", flag())
        .required("signer")
        .required("suspension")
        .required("suspended")
        .required("changed")
        .build()
}

/// The body of a refusal.
fn error_schema() -> RefOr<Schema> {
    let word = || ObjectBuilder::new().schema_type(Type::String);
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("Why a request is refused."))
        .property("code", Ref::from_schema_name("Code"))
        .property("message", word().description(Some("A sentence for people.")))
        .property("retryable", ObjectBuilder::new().schema_type(Type::Boolean))
        .property("request_id", word().description(Some("The same as the header X-Request-Id.")))
        .property("outcome", word().description(Some("unknown: it may be done.")))
        .property("owner_node", word().description(Some("With NOT_LEADER: the owner's name.")))
        .property("owner_url", word().description(Some("With NOT_LEADER: the owner's URL.")))
        .required("code")
        .required("message")
        .required("retryable")
        .required("request_id")
        .into()
}

/// The codes that a node answers: its own, and those of every listener.
fn codes() -> RefOr<Schema> {
    let shared = [
        Code::InvalidRequest,
        Code::InvalidAmount,
        Code::Unauthorized,
        Code::Forbidden,
        Code::NotFound,
        Code::MethodNotAllowed,
        Code::DuplicateRequest,
        Code::Overloaded,
        Code::SystemError,
    ];
    let own = Code::ALL.iter().copied().filter(|code| code.is_of_nodes());
    let names = shared.into_iter().chain(own).map(Code::name);
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::tests::assert_referred;

    #[test]
    fn every_route_stands_in_the_document_and_every_reference_resolves() {
        let document = serde_json::to_value(document()).expect("strings and numbers");
        let mut described = 0;
        for row in CLIENT_ROUTES.rows() {
            let operation = &document["paths"][row.pattern][row.method.as_str().to_lowercase()];
            assert!(operation["operationId"].is_string(), "{} {}", row.method, row.pattern);
            described += 1;
        }
        assert!(described > 10, "{described}");
        assert_referred(&document);
        let known = document["components"]["schemas"]["Code"]["enum"].as_array().expect("codes");
        for (_, operations) in document["paths"].as_object().expect("paths") {
            let text = operations.to_string();
            for code in Code::ALL.iter().filter(|code| text.contains(&format!("{:?}", code.name())))
            {
                assert!(known.contains(&json!(code.name())), "{code}");
            }
        }
    }
}
