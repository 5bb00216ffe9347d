//! The statement of an account of a channel, for finance: each movement with its other side.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::recharges::desk;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters};
use crate::http::service::Service;
use crate::postgres::reads::channel_statement::{StatementRow, StatementSearch};
use domain::amount::units_text;
use domain::asset::Catalog;

/// The accounts of a channel.
const ACCOUNTS: [&str; 6] = ["clearing", "suspense", "receivable", "fees", "loss", "bank"];
/// The longest time of a statement.
const TIME_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);

#[derive(Serialize)]
struct Body {
    account: String,
    movements: Vec<StatementBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct StatementBody {
    key: String,
    at: Timestamp,
    side: &'static str,
    other: String,
    asset: String,
    amount: String,
    recharge_id: Option<String>,
    payment_id: Option<String>,
}

impl StatementBody {
    fn new(row: &StatementRow, catalog: &Catalog) -> StatementBody {
        let known = catalog.by_id(row.asset).map(|asset| asset.symbol.clone());
        StatementBody {
            key: row.key.clone(),
            at: row.at,
            side: if row.is_debit { "debit" } else { "credit" },
            other: row.other.clone(),
            asset: known.unwrap_or_else(|| format!("#{}", row.asset.0)),
            amount: units_text(row.amount.into(), catalog.precision(row.asset)),
            recharge_id: row.recharge.map(|id| id.to_string()),
            payment_id: row.payment.map(|id| id.to_string()),
        }
    }
}

/// `GET /admin/v1/channels/{channel}/statement?account=&since=&until=`: the movements of one
/// account, the oldest first. A channel that is no longer configured has its statement too.
pub(super) async fn show(service: &Service, channel: &str, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    desk(service)?;
    let reads = &service.transfers.reads;
    let search = search(channel, call.request.uri().query().unwrap_or(""))?;
    let found = reads.channel_statement(&search).await.map_err(postgres_away)?;
    let catalog = reads.catalog();
    let body = Body {
        account: search.account,
        movements: found.rows.iter().map(|row| StatementBody::new(row, &catalog)).collect(),
        next_cursor: found.next.map(|(at, key)| {
            // A key has characters that stand for something in a URL.
            format!("{}.{}", at.as_microsecond(), URL_SAFE_NO_PAD.encode(key))
        }),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the search from a query.
fn search(channel: &str, query: &str) -> Result<StatementSearch, Refusal> {
    let names = ["account", "since", "until", "limit", "cursor"];
    let [account, since, until, limit, cursor] = parameters(query, names)?;
    let account = account.as_deref().unwrap_or("clearing");
    if !ACCOUNTS.contains(&account) {
        return Err(invalid(format!("account must be one of {}.", ACCOUNTS.join(", "))));
    }
    let time = |name: &str, text: Option<&str>| {
        let time = text.and_then(|text| text.parse::<Timestamp>().ok());
        time.ok_or_else(|| invalid(format!("{name} must be a time as in RFC 3339.")))
    };
    let (since, until) = (time("since", since.as_deref())?, time("until", until.as_deref())?);
    if !(SignedDuration::ZERO..=TIME_MAX).contains(&since.duration_until(until)) {
        return Err(invalid("until must be behind since, by 31 days at most."));
    }
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let after = cursor.map(|text| {
        let (at, key) = text.split_once('.')?;
        let key = String::from_utf8(URL_SAFE_NO_PAD.decode(key).ok()?).ok()?;
        Some((Timestamp::from_microsecond(at.parse().ok()?).ok()?, key))
    });
    let wrong_cursor = || invalid("cursor must be the next_cursor of an earlier answer.");
    let after = after.map(|after| after.ok_or_else(wrong_cursor)).transpose()?;
    Ok(StatementSearch {
        account: format!("{channel}/{account}"),
        within: (since, until),
        after,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
    })
}
