//! Lies and failures of an endpoint of a chain, which a [`super::ChainProxy`] tells on demand.

use std::sync::Arc;

use serde_json::{Value, json};

/// A change of one call's result.
type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// One way to answer wrongly, or not at all. Those above the line of [`Lie::LoseAnswer`] do not
/// deliver the request to the node; the others do.
#[derive(Clone)]
pub(crate) enum Lie {
    /// Closes the connection.
    LoseRequest,
    /// This HTTP status with a short text, such as 429 or 502.
    Status(u16),
    /// Status 200 and a page in HTML.
    Html,
    /// Status 307 to another path of the proxy, which counts as a followed redirect.
    Redirect,
    /// This error to each matching call.
    Say { code: i64, message: String },
    /// Delivers, and closes the connection instead of the answer.
    LoseAnswer,
    /// Delivers, and answers this HTTP status.
    StatusAfter(u16),
    /// Delivers, and answers this error to each matching call.
    SayAfter { code: i64, message: String },
    /// Delivers each matching call twice, and answers the first answer.
    Double,
    /// Waits for the release, then delivers and answers. A client that no longer waits has a late
    /// request on the way.
    Delay,
    /// Delivers, and waits for the release with the answer.
    DelayAnswer,
    /// Delivers; the answers of a batch have each other's ids, a single one has a foreign id.
    SwapIds,
    /// Delivers, and sends the first half of the answer.
    HalfAnswer,
    /// Delivers; the answer is valid JSON of more than 9 MiB.
    LongAnswer,
    /// Delivers; the answer claims to be compressed, and is not.
    Gzip,
    /// Delivers, and changes the result of each matching call.
    Change(Change),
}

impl Lie {
    /// The error of JSON-RPC with the number that most nodes use.
    pub(crate) fn say(message: &str) -> Lie {
        Lie::Say { code: ERROR_OF_SENDS, message: message.to_owned() }
    }

    /// A change of results; `null` is given as well.
    pub(crate) fn change(change: impl Fn(&mut Value) + Send + Sync + 'static) -> Lie {
        Lie::Change(Arc::new(change))
    }

    /// Another value of one field of each result that is an object, such as a receipt's `status`.
    pub(crate) fn field(name: &'static str, value: Value) -> Lie {
        Lie::change(move |result| {
            if let Some(field) = result.get_mut(name) {
                *field = value.clone();
            }
        })
    }

    /// Another result.
    pub(crate) fn result(value: Value) -> Lie {
        Lie::change(move |result| *result = value.clone())
    }
}

/// The number of most errors of a send.
pub(crate) const ERROR_OF_SENDS: i64 = -32_000;

/// An answer with an error.
pub(super) fn refusal(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// Exchanges the ids of answers, each for its neighbour's.
pub(super) fn swap_ids(answers: &mut [Value]) {
    let mut ids: Vec<Value> = answers.iter().map(|answer| answer["id"].clone()).collect();
    match ids.as_mut_slice() {
        [alone] => *alone = json!("a foreign id"),
        many => many.rotate_left(1),
    }
    for (answer, id) in answers.iter_mut().zip(ids) {
        answer["id"] = id;
    }
}
