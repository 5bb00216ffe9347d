use domain::amount::{Amount, PRECISION_MAX, units_from_text};
use domain::asset::{Asset, AssetId, AssetStatus, Catalog};
use domain::code::Code;
use domain::form::{Form, check_form};
use domain::transfer::{Cid, ReqId};
use ubscore::config::auth::Auth;
use ubscore::config::secret::Secret;
use ubscore::http::auth::{USER_ID_MAX, Verifier, user_id};
use ubscore::http::public::post::request_fingerprint;
use ubscore::http::refusal::Refusal;
use ubscore::http::request::{parameter, parse};
use ubscore::http::request_id::request_id;
use ubscore::pause::Pauses;
use ubscore::postgres::store::differing_fields;
use ubscore::validation::Draft;

/// The service's value with `amount.safety_factor = 1000`.
const UNITS_MAX: u64 = u64::MAX / 1_000;

/// A line with the content of a path, a query or a header, and behind it a body.
pub fn check(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (line, body) = bytes.split_at(end);
    let body = body.get(1..).unwrap_or_default();
    if let Ok(line) = std::str::from_utf8(line) {
        check_text(line);
    }
    check_body(body);
}

fn check_text(text: &str) {
    if let Some(id) = ReqId::parse(text) {
        assert_eq!(ReqId::parse(&id.to_string()), Some(id), "{text:?}");
        assert_eq!(text.len(), id.to_string().len(), "{text:?}");
    }
    if let Some(cid) = Cid::new(text) {
        assert_eq!(cid.as_str(), text);
    }
    if let Some(user) = user_id(text) {
        assert!((1..=USER_ID_MAX).contains(&user) && user.to_string() == text, "{text:?}");
    }
    match parameter(text, "asset") {
        Ok(Some(value)) => {
            let plain = text.contains(&format!("asset={value}"));
            assert!(plain || value.is_empty() || text.contains('%'));
        }
        Ok(None) => assert!(text.bytes().all(|byte| byte == b'&'), "{text:?}"),
        Err(refusal) => check_refusal(&refusal, Code::InvalidRequest),
    }
    if let Ok(value) = text.try_into()
        && let Some(id) = request_id(Some(&value))
    {
        Refusal::from(Code::NotFound).answer(id);
    }
    // Without a secret there is no user.
    let secret = Some(Secret::new("a secret of the fuzz targets, and of no one else"));
    let verifier = Verifier::new(&Auth { secret, ..Auth::default() }).expect("a key");
    assert!(verifier.verify(Some(text), 1_700_000_000).is_err(), "{text:?}");
    for precision in 0..=PRECISION_MAX {
        check_amount(text, precision);
    }
}

/// An accepted amount is the number of its digits; a refused one is no number, too fine or too
/// large.
fn check_amount(text: &str, precision: u8) {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits(whole) && digits(fraction);
    let said = units_from_text(text, precision).filter(|_| plain);
    let decimals = if text.contains('.') { fraction.len() } else { 0 };
    match Amount::parse(text, precision, UNITS_MAX) {
        Ok(amount) => {
            assert_eq!(Some(u128::from(amount.units())), said, "{text:?}");
            assert!(amount.units() <= UNITS_MAX && decimals <= usize::from(precision), "{text:?}");
            let again = amount.text(precision);
            assert_eq!(Amount::parse(&again, precision, UNITS_MAX), Ok(amount), "{text:?}");
        }
        Err(Code::InvalidAmount) => assert!(!plain || said == Some(0), "{text:?}"),
        Err(Code::PrecisionOverflow) => assert!(decimals > usize::from(precision), "{text:?}"),
        Err(Code::Overflow) => {
            assert!(said.is_none_or(|units| units > u128::from(UNITS_MAX)), "{text:?}");
        }
        Err(code) => panic!("{text:?}: {code:?}"),
    }
}

fn check_body(body: &[u8]) {
    let draft: Draft = match parse(body) {
        Ok(draft) => draft,
        Err(refusal) => return check_refusal(&refusal, Code::InvalidRequest),
    };
    match draft.cid() {
        Ok(cid) => assert_eq!(cid.as_ref().map(Cid::as_str), draft.cid.as_deref()),
        Err(code) => assert_eq!(code, Code::InvalidRequest),
    }
    let catalog = catalog();
    // A known cid is compared before any other check, so any draft may meet any transfer.
    let (mine, other) = (request_fingerprint(&draft, &catalog), "FUNDING:SPOT:USDT:100");
    assert_eq!(differing_fields(&mine, other).is_empty(), mine == other, "{mine}");
    match draft.check(&catalog, &Pauses::default(), UNITS_MAX) {
        Ok(checked) => {
            assert_eq!(checked.direction.accounts(), (&*draft.from, &*draft.to));
            let (asset, amount) = (&checked.asset, checked.amount);
            assert_eq!(asset.symbol, draft.asset);
            assert!((asset.transfer_min..=asset.transfer_max).contains(&amount), "{checked:?}");
            let said = units_from_text(&draft.amount, asset.precision);
            assert_eq!(Some(u128::from(amount.units())), said, "{draft:?}");
            let user = draft.user_id.unwrap_or(1);
            let form = Form { req_id: 1, user, amount: amount.units(), asset_known: true };
            assert_eq!(check_form(form).is_ok(), (1..=USER_ID_MAX).contains(&user), "{user}");
            // The same money in another spelling is the same request.
            let amount = amount.text(asset.precision);
            let same = Draft { amount, ..draft.clone() };
            assert_eq!(request_fingerprint(&same, &catalog), mine);
        }
        Err(code) => check_refusal(&Refusal::from(code), code),
    }
}

/// A refusal has an answer, and blames the client.
fn check_refusal(refusal: &Refusal, code: Code) {
    assert_eq!(refusal.code, code);
    let status = refusal.answer("fuzz").status();
    assert!(status.is_client_error(), "{refusal:?} is answered {status}");
}

fn catalog() -> Catalog {
    let asset = |id, symbol: &str, precision| Asset {
        id: AssetId(id),
        symbol: symbol.to_owned(),
        precision,
        status: AssetStatus::Active,
        transfer_enabled: true,
        transfer_min: Amount::new(1).expect("not zero"),
        transfer_max: Amount::new(u64::MAX / 2_000).expect("not zero"),
    };
    Catalog::new([
        asset(1, "USDT", 8),
        asset(2, "JPY", 0),
        Asset { status: AssetStatus::Suspended, ..asset(3, "SUSP", 8) },
        Asset { transfer_enabled: false, ..asset(4, "STAY", 8) },
        Asset { transfer_min: Amount::new(100).expect("not zero"), ..asset(5, "MIN", 2) },
    ])
}
