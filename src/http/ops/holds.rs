//! Holds of both stores: found, and those of Spot released if their venue is closed. A hold of a
//! transaction ends with it.

use std::sync::Arc;

use engine::fact::HoldFact;
use engine::venue::{Look, OpenError, Page};
use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;
use ulid::Ulid;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::rejected::unanswered;
use super::venues::refused;
use crate::adapters::spot::{NotChanged, Released, Spot};
use crate::approval::Action;
use crate::http::answer::{Answer, json};
use crate::http::auth;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, number, parameters, query};
use crate::http::service::{Intake, Service, Transfers};
use crate::postgres::reads::Reads;
use crate::postgres::reads::holds::{FundingHoldFilter, FundingHoldRow};
use crate::recharge::movement::{BONUS_HOLD, RETURN_HOLD};
use domain::account::UserId;
use domain::amount::units_text;
use domain::asset::{Asset, AssetId, Catalog};
use domain::code::Code;
use domain::transfer::Participant;

/// Reads of the table for one answer, 256 rows each. A page may have fewer holds than its limit
/// and still a cursor.
const LOOKS_MAX: usize = 400;

const NS_PER_MS: u64 = 1_000_000;

#[derive(Serialize)]
struct HoldBody {
    /// `venue:number`, or `transaction:user:asset number`, with `:purpose` if it is taken from a
    /// freeze, on Funding with `FUNDING:` before it; null for a freeze. That of a refund has
    /// `return:` and its return for the transaction.
    id: Option<String>,
    /// FUNDING or SPOT.
    account: &'static str,
    /// Of a hold of a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction: Option<String>,
    venue: Option<u32>,
    number: Option<u64>,
    /// Of a freeze, and of a hold that is taken from one.
    purpose: Option<u16>,
    user_id: u64,
    asset: String,
    amount: String,
    /// Of Spot: the owner's own number.
    reference: Option<u64>,
    /// Of Spot: the record of the log that made it.
    sequence: Option<u64>,
    at: Timestamp,
}

/// The beginning of the id of a hold of Funding; its key follows.
const FUNDING: &str = "FUNDING:";
/// User, asset and key of a hold of Funding.
type FundingPlace = (u64, AssetId, String);
/// The beginning of a cursor among the holds of Funding; a key with points follows.
const FUNDING_CURSOR: &str = "funding.";

impl HoldBody {
    fn of_funding(hold: &FundingHoldRow, catalog: &Catalog) -> HoldBody {
        let transaction = transaction_of(&hold.key).map(|(name, ..)| Ulid(name).to_string());
        HoldBody {
            id: Some(format!("{FUNDING}{}", hold.key)),
            account: Participant::Funding.account(),
            transaction,
            venue: None,
            number: None,
            purpose: (hold.purpose != 0).then_some(hold.purpose),
            user_id: hold.user,
            asset: symbol(hold.asset, catalog),
            amount: units_text(hold.amount.into(), catalog.precision(hold.asset)),
            reference: None,
            sequence: None,
            at: hold.at,
        }
    }

    fn new(hold: &HoldFact, catalog: &Catalog) -> HoldBody {
        let of_venue = hold.venue != 0;
        let transaction = (hold.transaction != 0).then(|| Ulid(hold.transaction).to_string());
        let asset = AssetId(hold.asset);
        let id = match &transaction {
            Some(name) if hold.purpose != 0 => {
                Some(format!("{name}:{}:{}:{}", hold.user, hold.asset, hold.purpose))
            }
            Some(name) => Some(format!("{name}:{}:{}", hold.user, hold.asset)),
            None => of_venue.then(|| format!("{}:{}", hold.venue, hold.number)),
        };
        HoldBody {
            id,
            account: Participant::Spot.account(),
            venue: of_venue.then_some(hold.venue),
            number: of_venue.then_some(hold.number),
            purpose: (hold.purpose != 0).then_some(hold.purpose),
            transaction,
            user_id: hold.user,
            asset: symbol(asset, catalog),
            amount: units_text(hold.amount, catalog.precision(asset)),
            reference: Some(hold.reference),
            sequence: Some(hold.record),
            at: Timestamp::from_nanosecond(hold.time_ns.into()).expect("any u64 of ns is in range"),
        }
    }
}

/// The symbol; the number of an asset without a row: it was deleted by hand.
fn symbol(asset: AssetId, catalog: &Catalog) -> String {
    let known = catalog.by_id(asset).map(|asset| asset.symbol.clone());
    known.unwrap_or_else(|| format!("#{}", asset.0))
}

/// One Spot balance of a user, and whether its holds add up to the sum that is carried along.
#[derive(Serialize)]
struct BalanceBody {
    asset: String,
    available: String,
    held: String,
    /// Null if the balance has more holds than one look takes.
    exact: Option<bool>,
}

/// The holds that a request asks for.
struct Filter {
    user: Option<UserId>,
    asset: Option<AssetId>,
    venue: Option<u32>,
    purpose: Option<u16>,
    /// Made at this time or before, ns since the Unix epoch.
    until_ns: u64,
}

impl Filter {
    fn admits(&self, hold: &HoldFact) -> bool {
        self.user.is_none_or(|user| user.number() == hold.user)
            && self.asset.is_none_or(|asset| asset.0 == hold.asset)
            && self.venue.is_none_or(|venue| hold.venue == venue)
            && self.purpose.is_none_or(|purpose| hold.purpose == purpose)
            && hold.time_ns <= self.until_ns
    }
}

/// The words of a list.
struct Asked {
    filter: Filter,
    /// On this account alone.
    account: Option<Participant>,
    /// Holds on a page.
    limit: usize,
    /// The position in the table of Spot to go on below.
    before: usize,
    /// The page begins among the holds of Funding, behind this one.
    in_funding: Option<Option<FundingPlace>>,
}

impl Asked {
    /// Reads a query. `now_ns`: the service's clock.
    fn parse(text: &str, catalog: &Catalog, now_ns: u64) -> Result<Asked, Refusal> {
        let names = ["account", "user", "asset", "venue", "purpose", "older_ms", "limit", "cursor"];
        let [account, user, asset, venue, purpose, older_ms, limit, cursor] =
            parameters(text, names)?;
        let account = account.map(|name| {
            let stores = [Participant::Funding, Participant::Spot];
            let store = stores.into_iter().find(|store| store.account() == name);
            store.ok_or_else(|| invalid("account must be FUNDING or SPOT."))
        });
        let user = user.map(|text| {
            let user = auth::user_id(&text).and_then(UserId::new);
            user.ok_or_else(|| invalid("There is no such user."))
        });
        let asset = asset.map(|symbol| catalog.by_symbol(&symbol).ok_or(Code::InvalidAsset));
        let whole = |name: &str, text: Option<&str>| match text.map(str::parse::<u64>) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(invalid(format!("{name} must be a whole number."))),
        };
        let venue = venue.map(|text| number("venue", &text, 1..=u32::MAX)).transpose()?;
        let purpose = purpose.map(|text| number("purpose", &text, 1..=u16::MAX.into()));
        let older_ms = whole("older_ms", older_ms.as_deref())?;
        let limit = limit.map(|text| number("limit", &text, 1..=LIMIT_MAX)).transpose()?;
        let behind = cursor.as_deref().and_then(|text| text.strip_prefix(FUNDING_CURSOR));
        let in_funding = behind.map(funding_place).transpose()?;
        let before = match in_funding {
            Some(_) => None,
            None => whole("cursor", cursor.as_deref())?,
        };
        let older_ns = older_ms.unwrap_or(0).saturating_mul(NS_PER_MS);
        let purpose = purpose.transpose()?;
        Ok(Asked {
            filter: Filter {
                user: user.transpose()?,
                asset: asset.transpose()?.map(|asset| asset.id),
                venue,
                purpose: purpose.map(|purpose| u16::try_from(purpose).expect("in range")),
                until_ns: now_ns.saturating_sub(older_ns),
            },
            account: account.transpose()?,
            limit: usize::try_from(limit.unwrap_or(LIMIT_DEFAULT)).expect("small"),
            before: before.map_or(usize::MAX, |at| usize::try_from(at).unwrap_or(usize::MAX)),
            in_funding,
        })
    }

    /// Whether holds of this account are asked for. The hold of a venue is on Spot.
    fn is_of(&self, store: Participant) -> bool {
        let only_spot = self.filter.venue.is_some();
        self.account.is_none_or(|account| account == store)
            && (store == Participant::Spot || !only_spot)
    }
}

/// `GET /admin/v1/holds`: holds and freezes, of a user also each Spot balance with `exact`. A hold
/// that is there during the whole listing is in it. Those of Funding stand behind those of Spot.
pub(super) async fn list(
    intake: &Intake,
    transfers: &Transfers,
    spot: &Spot,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    let catalog = transfers.reads.catalog();
    let text = call.request.uri().query().unwrap_or("");
    let asked = Asked::parse(text, &catalog, transfers.clock.now_ns())?;
    let balances = match asked.filter.user {
        Some(user) => Some(recount(spot, user, asked.filter.asset, &catalog).await?),
        None => None,
    };
    let (on_spot, next) = match asked.is_of(Participant::Spot) && asked.in_funding.is_none() {
        true => find(spot, &asked.filter, asked.before, asked.limit).await?,
        false => (Vec::new(), None),
    };
    let mut holds: Vec<HoldBody> =
        on_spot.iter().map(|hold| HoldBody::new(hold, &catalog)).collect();
    let mut next_cursor = next.map(|next| next.to_string());
    if next_cursor.is_none() && asked.is_of(Participant::Funding) {
        let room = asked.limit - holds.len();
        let (more, next) = find_funding(&transfers.reads, asked, room).await?;
        holds.extend(more.iter().map(|hold| HoldBody::of_funding(hold, &catalog)));
        next_cursor = next;
    }
    #[derive(Serialize)]
    struct Body {
        holds: Vec<HoldBody>,
        next_cursor: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        balances: Option<Vec<BalanceBody>>,
    }
    Ok(json(StatusCode::OK, &Body { holds, next_cursor, balances }, &call.request_id))
}

/// The place in a cursor, behind its beginning. `None`: before the first hold.
fn funding_place(text: &str) -> Result<Option<FundingPlace>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let key = text.replace('.', ":");
    match transaction_of(of_return(&key)) {
        Some((_, user, asset, _)) => Ok(Some((user, AssetId(asset), key))),
        None => Err(invalid("cursor must be the next_cursor of an earlier answer.")),
    }
}

/// A key of a hold without the word that a return's hold, or that of its bonus, begins with.
fn of_return(key: &str) -> &str {
    key.strip_prefix(RETURN_HOLD).or_else(|| key.strip_prefix(BONUS_HOLD)).unwrap_or(key)
}

/// At most `room` holds of Funding, and the cursor to go on with.
async fn find_funding(
    reads: &Reads,
    asked: Asked,
    room: usize,
) -> Result<(Vec<FundingHoldRow>, Option<String>), Refusal> {
    let Asked { filter, in_funding, .. } = asked;
    let wanted = FundingHoldFilter {
        user: filter.user,
        asset: filter.asset,
        purpose: filter.purpose,
        until: Timestamp::from_nanosecond(filter.until_ns.into()).expect("any u64 is in range"),
        after: in_funding.flatten(),
        // One more: whether there is another page.
        limit: room + 1,
    };
    let mut found = reads.funding_holds(&wanted).await.map_err(postgres_away)?;
    let more = found.len() > room;
    found.truncate(room);
    let last = found.last().map_or(String::new(), |last| last.key.replace(':', "."));
    Ok((found, more.then(|| format!("{FUNDING_CURSOR}{last}"))))
}

/// `GET /admin/v1/holds/{hold}`: one hold of a venue or of a transaction. Without `FUNDING:` before
/// it, the name of a transaction's hold means that on Spot, or else that on Funding.
pub(super) async fn show(
    intake: &Intake,
    transfers: &Transfers,
    spot: &Spot,
    id: &str,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let catalog = transfers.reads.catalog();
    let (key, only_funding) = match id.strip_prefix(FUNDING) {
        Some(key) => (key, true),
        None => (id, false),
    };
    // A hold of a return is on Funding.
    let wanted = transaction_of(of_return(key));
    if only_funding && wanted.is_none() {
        return Err(Code::HoldNotFound.into());
    }
    let look = match wanted {
        Some((transaction, ..)) => Look::Transaction { transaction },
        None => {
            let (venue, number) = hold_of(id)?;
            Look::Hold { venue, number }
        }
    };
    let holds = match only_funding {
        true => Vec::new(),
        false => spot.look(look).await.map_err(|_| Refusal::away("UBSCore"))?.holds,
    };
    let is_wanted = |hold: &&HoldFact| {
        wanted.is_none_or(|(_, user, asset, purpose)| {
            (hold.user, hold.asset, hold.purpose) == (user, asset, purpose)
        })
    };
    let body = match holds.iter().find(is_wanted) {
        Some(hold) => HoldBody::new(hold, &catalog),
        None if wanted.is_some() => {
            let hold = transfers.reads.funding_hold(key).await.map_err(postgres_away)?;
            HoldBody::of_funding(&hold.ok_or(Code::HoldNotFound)?, &catalog)
        }
        None => return Err(Code::HoldNotFound.into()),
    };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// Each Spot balance of a user that is not zero, counted at one point of the log.
async fn recount(
    spot: &Spot,
    user: UserId,
    asset: Option<AssetId>,
    catalog: &Catalog,
) -> Result<Vec<BalanceBody>, Refusal> {
    let mut balances = Vec::new();
    let wanted = |known: &&&Asset| asset.is_none_or(|asset| asset == known.id);
    for asset in catalog.all().iter().filter(wanted) {
        let look = Look::Balance { user: user.number(), asset: asset.id.0 };
        let page = spot.look(look).await.map_err(|_| Refusal::away("UBSCore"))?;
        let Page { holds, balance: (available, held), more, .. } = page;
        if available == 0 && held == 0 && holds.is_empty() {
            continue;
        }
        let found: u128 = holds.iter().map(|hold| hold.amount).sum();
        let text = |units| units_text(units, asset.precision);
        balances.push(BalanceBody {
            asset: asset.symbol.clone(),
            available: text(available),
            held: text(held),
            exact: (!more).then_some(found == held),
        });
    }
    Ok(balances)
}

/// At most `limit` holds at positions below `before`, and the position to go on with.
async fn find(
    spot: &Spot,
    filter: &Filter,
    before: usize,
    limit: usize,
) -> Result<(Vec<HoldFact>, Option<usize>), Refusal> {
    let (mut found, mut next) = (Vec::new(), Some(before));
    for _ in 0..LOOKS_MAX {
        let Some(before) = next else { break };
        let page = spot.look(Look::Holds { before }).await;
        let Page { holds, next: below, .. } = page.map_err(|_| Refusal::away("UBSCore"))?;
        let end = below.unwrap_or(0) + holds.len();
        next = below;
        for (index, hold) in holds.iter().enumerate() {
            if filter.admits(hold) {
                found.push(*hold);
                if found.len() == limit {
                    let position = end - 1 - index;
                    return Ok((found, Some(position).filter(|position| *position > 0)));
                }
            }
        }
    }
    Ok((found, next))
}

/// Transaction, user, asset and purpose of a hold of a transaction.
fn transaction_of(id: &str) -> Option<(u128, u64, u32, u16)> {
    let parts: Vec<&str> = id.split(':').collect();
    let (name, user, asset, purpose) = match parts[..] {
        [name, user, asset] => (name, user, asset, 0),
        [name, user, asset, purpose] => (name, user, asset, purpose.parse().ok()?),
        _ => return None,
    };
    Some((Ulid::from_string(name).ok()?.0, user.parse().ok()?, asset.parse().ok()?, purpose))
}

/// Venue and number of a hold.
fn hold_of(id: &str) -> Result<(u32, u64), Refusal> {
    let parts = id.split_once(':').and_then(|(venue, number)| {
        Some((venue.parse::<u32>().ok()?, number.parse::<u64>().ok()?))
    });
    let known = parts.filter(|(venue, number)| *venue > 0 && *number > 0);
    if let Some((name, ..)) = transaction_of(id.strip_prefix(FUNDING).unwrap_or(id)) {
        let name = Ulid(name);
        let what = "The hold of a transaction ends with it. Next: ubscore transaction abort";
        return Err(invalid(format!("{what} {name}.")));
    }
    known.ok_or_else(|| invalid("The hold must be named as venue:number."))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseDraft {
    reason: String,
}

/// `POST /admin/v1/holds/{hold}/release`: all that remains goes back to its owner. The venue must
/// be closed.
pub(super) async fn release(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let (venue, number) = hold_of(&parameters[0])?;
    let ReleaseDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let subject = format!("{venue}:{number}");
    refuse_open(&service.spot, venue).await?;
    if service.approvals.need(Action::Hold) {
        let wish = approvals::Wanted {
            action: Action::Hold,
            subject: &subject,
            request: "{}".to_owned(),
            caller,
            reason: &reason,
            request_id: &request_id,
        };
        return approvals::ask(&service, wish).await;
    }
    let note = AuditNote { actor: actor(caller), reason, request_id };
    let released = carry_out(&service, &subject, &note).await?.map_err(refused)?;
    Ok(answer(&service, subject, Some(released), &note))
}

/// Refuses an open venue, before the audit has a row or another operator is asked. UBSCore decides
/// again.
async fn refuse_open(spot: &Spot, venue: u32) -> Result<(), Refusal> {
    let venues = spot.venues().await.map_err(unanswered)?;
    let refusal = match venues.iter().find(|known| known.id == venue) {
        Some(known) if known.closed => return Ok(()),
        Some(_) => OpenError::NotClosed,
        None => OpenError::Unknown,
    };
    Err(refused(NotChanged::Refused(refusal)))
}

/// Releases a hold in the name of both operators. A hold that is gone by now is released already.
pub(super) async fn release_now(service: &Service, id: &str, note: AuditNote) -> Outcome {
    let released = match carry_out(service, id, &note).await? {
        Ok(released) => Some(released),
        Err(NotChanged::Refused(OpenError::NoHold)) => None,
        Err(failure) => return Err(refused(failure)),
    };
    Ok(answer(service, id.to_owned(), released, &note))
}

async fn carry_out(
    service: &Service,
    id: &str,
    note: &AuditNote,
) -> Result<Result<Released, NotChanged>, Refusal> {
    let Service { intake, transfers, spot, .. } = service;
    let (venue, number) = hold_of(id)?;
    // After a cut of the log a lost release is repeated, between lost numbers of venues.
    let is_stopped = || transfers.halt.is_halted() && !transfers.halt.resends();
    if is_stopped() {
        return Err(Code::ServiceHalted.into());
    }
    let name = Ulid::from_parts(intake.clock.now_ns() / NS_PER_MS, intake.entropy.lock().u128());
    let AuditNote { actor, reason, .. } = note;
    // The intent first: no change of UBSCore may be without its author.
    let text = name.to_string();
    let audit = transfers.admin.audit(actor, "hold release", id, &text, reason);
    audit.await.map_err(postgres_away)?;
    // The wait may have been long. The audit row stays as the intent.
    if is_stopped() {
        return Err(Code::ServiceHalted.into());
    }
    warn!(actor, reason, hold = id, %name, "a hold is released by an operator");
    Ok(spot.release_hold(name.0, venue, number).await)
}

/// `released`: `None` if an earlier try has released it.
fn answer(service: &Service, id: String, released: Option<Released>, note: &AuditNote) -> Answer {
    #[derive(Serialize)]
    struct Body {
        id: String,
        user_id: Option<u64>,
        asset: Option<String>,
        amount: Option<String>,
        sequence: Option<u64>,
    }
    let catalog = service.transfers.reads.catalog();
    let text =
        |released: Released| units_text(released.amount.into(), catalog.precision(released.asset));
    let body = Body {
        id,
        user_id: released.map(|released| released.user),
        asset: released.map(|released| symbol(released.asset, &catalog)),
        amount: released.map(text),
        sequence: released.map(|released| released.sequence),
    };
    json(StatusCode::OK, &body, &note.request_id)
}
