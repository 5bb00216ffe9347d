//! `GET /api/v1/internal_transfers`: a user's own transfers, newest first.

use futures_util::future::try_join_all;
use hyper::StatusCode;
use jiff::fmt::temporal::Pieces;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters};
use crate::http::service::{Caller, Transfers};
use crate::http::settle::settle;
use crate::http::wire::{SummariesBody, SummaryBody};
use crate::postgres::reads::lists::OwnFilter;
use domain::account::UserId;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::{Cid, Direction, State};

/// Transfers of a page, if the query has no limit.
pub(in crate::http) const LIMIT_DEFAULT: u32 = 50;
/// The most transfers of a page. A page sends UBSCore at most as many queries.
pub(in crate::http) const LIMIT_MAX: u32 = 100;

/// Answers a page of the token's user. An operator's token lists the operator's own transfers too.
pub(super) async fn list(transfers: &Transfers, caller: Caller, call: &Call) -> Outcome {
    let catalog = transfers.reads.catalog();
    let text = call.request.uri().query().unwrap_or("");
    let filter = parse(text, caller.user, &catalog)?;
    let page = transfers.reads.own_list(&filter).await.map_err(postgres_away)?;
    let settled =
        page.transfers.into_iter().map(|transfer| settle(&transfers.coordinator, transfer));
    let settled = try_join_all(settled).await?;
    debug_assert!(
        settled.windows(2).all(|two| two[0].0.intent.order_number >= two[1].0.intent.order_number),
        "a page is newest first"
    );
    // Read again: a transfer may be of an asset that was added in between.
    let catalog = transfers.reads.catalog();
    let rows = settled
        .iter()
        .filter(|(transfer, _)| filter.state.is_none_or(|state| transfer.state == state))
        .map(|(transfer, funds_at)| SummaryBody::new(transfer, *funds_at, &catalog));
    let body = SummariesBody {
        transfers: rows.collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Reads the filter from a query.
fn parse(query: &str, user: UserId, catalog: &Catalog) -> Result<OwnFilter, Refusal> {
    let names = ["state", "asset", "direction", "cid", "since", "until", "limit", "cursor"];
    let [state, asset, direction, cid, since, until, limit, cursor] = parameters(query, names)?;
    let state = state.map(|name| {
        State::from_name(&name)
            .ok_or_else(|| invalid(format!("state must be one of {}.", State::names())))
    });
    let asset = asset.map(|symbol| {
        catalog.by_symbol(&symbol).map(|asset| asset.id).ok_or(Refusal::from(Code::InvalidAsset))
    });
    let direction = direction.map(|name| {
        let invalid = || invalid("direction must be FUNDING_TO_SPOT or SPOT_TO_FUNDING.");
        Direction::from_wire_name(&name).ok_or_else(invalid)
    });
    let cid = cid.map(|text| {
        Cid::new(&text).ok_or_else(|| invalid("cid must be 1 to 64 of A-Z a-z 0-9 _ . : -"))
    });
    let since = since.map(|text| moment("since", &text));
    let until = until.map(|text| moment("until", &text));
    let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
    let before = cursor.map(|text| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let before = if digits { text.parse().ok() } else { None };
        before.ok_or_else(|| invalid("cursor must be the next_cursor of an earlier answer."))
    });
    Ok(OwnFilter {
        user,
        state: state.transpose()?,
        asset: asset.transpose()?,
        direction: direction.transpose()?,
        cid: cid.transpose()?,
        since: since.transpose()?,
        until: until.transpose()?,
        before: before.transpose()?,
        limit: limit.unwrap_or(LIMIT_DEFAULT),
    })
}

/// A time that PostgreSQL can hold and compare: rounded up to a whole microsecond, and cut to the
/// range from the Unix epoch to the last `Timestamp`.
pub(in crate::http) fn moment(name: &str, text: &str) -> Result<Timestamp, Refusal> {
    let given = Pieces::parse(text).ok().and_then(|pieces| {
        let time = pieces.date().to_datetime(pieces.time()?);
        let given = pieces.offset()?.to_numeric_offset().to_timestamp(time);
        // The last day of the year 9999 means "never", and no Timestamp holds it.
        Some(given.unwrap_or(if time.year() > 1970 { Timestamp::MAX } else { Timestamp::MIN }))
    });
    let given = given.ok_or_else(|| {
        invalid(format!("{name} must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z."))
    })?;
    let up = TimestampRound::new().smallest(Unit::Microsecond).mode(RoundMode::Ceil);
    // Only the last microsecond cannot be rounded up.
    Ok(given.round(up).unwrap_or(given).max(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_compared_by_whole_microseconds() {
        for (text, want) in [
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
            ("2026-01-31T12:00:00.123456001+02:00", "2026-01-31T10:00:00.123457Z"),
            ("0000-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("-009999-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-30T22:00:00.999999999Z"),
        ] {
            let moment = moment("since", text).map_err(|refusal| refusal.message);
            assert_eq!(moment.map(|moment| moment.to_string()), Ok(want.to_owned()), "{text}");
        }
        for bad in ["", "yesterday", "2026-01-31", "12:00:00Z", "2026-01-31T12:00:00"] {
            assert!(moment("since", bad).is_err(), "{bad}");
        }
    }
}
