use super::*;

use crate::harness::{ADMIN, Request, send, text, token};
use ubscore::http::auth::Role;

/// The movements without a payment: key, sides and amount.
fn booked(books: &Billing) -> Vec<String> {
    let rows = "SELECT movement_key, debit, credit, amount FROM recharge_movements \
                 WHERE payment_id IS NULL ORDER BY at, movement_key";
    books.desk.site.sql(rows).into_iter().map(|row| row.join(" ")).collect()
}

fn account(books: &Billing, channel: &str, column: &str) -> i64 {
    let sum = format!(
        "SELECT COALESCE(sum({column}), 0) FROM recharge_accounts() WHERE channel = '{channel}'"
    );
    books.desk.site.sql_value(&sum).parse().expect("a number")
}

/// Goal: the fees of a good bill are one movement, once; fees that the channel gives back have the
/// other direction; other fees in a later bill of the same day change nothing and call a person.
#[test]
fn the_fees_of_a_day_are_booked_once() {
    let books = Billing::new();
    for channel in BOTH {
        books.credited(channel, channel, day(3));
        for _ in 0..2 {
            let bill = books.reconciles(channel, day(3), &json!({"fee": 60}));
            assert_eq!(bill["fees"], json!(60), "{bill}");
        }
        let unit = account(&books, channel, "paid") / 10_000;
        let key = format!("fees/{channel}/{}", day(3));
        let want = format!("{key} {channel}/fees {channel}/clearing {}", 60 * unit);
        assert!(booked(&books).contains(&want), "{want}: {:?}", booked(&books));
        assert_eq!(account(&books, channel, "fees"), 60 * unit);
        assert_eq!(account(&books, channel, "clearing"), 9_940 * unit);
        let of = format!("WHERE channel = '{channel}' RETURNING asset_id");
        let asset = format!("UPDATE channel_bills SET asset_id = asset_id + 7 {of}");
        let booked_in = books.desk.site.sql_value(&asset);
        books.reconciles(channel, day(3), &json!({"fee": 61}));
        let asset = format!("UPDATE channel_bills SET asset_id = asset_id - 7 {of}");
        let asset: i64 = books.desk.site.sql_value(&asset).parse().expect("a number");
        assert_eq!((asset + 7).to_string(), booked_in, "the asset of booked fees stands");
        assert_eq!(account(&books, channel, "fees"), 60 * unit, "what is booked stands");
        let said = format!("the bill of {} of channel {channel} has fees of 61", day(3));
        eventually("the alert", || books.server.said().contains(&said).then_some(()));
    }
    assert_eq!(booked(&books).len(), 2);
    // Lines of other users of the merchant account have fees too.
    books.credited("wechat", "shared", day(5));
    let bill = books.reconciles("wechat", day(5), &json!({"fee": 60, "foreign": 3}));
    assert_eq!((&bill["fees"], &bill["foreign_fees"]), (&json!(60), &json!(180)), "{bill}");
    books.credited("card", "another", day(5));
    let bill = books.reconciles("card", day(5), &json!({"fee": -5}));
    assert_eq!(bill["fees"], json!(-5), "{bill}");
    let back = format!("fees/card/{} card/clearing card/fees", day(5));
    assert!(booked(&books).iter().any(|one| one.starts_with(&back)), "{:?}", booked(&books));
    books.is_whole();
    // A bill that says other fees than its movement is named.
    books
        .desk
        .site
        .sql("UPDATE channel_bills SET fees_units = fees_units + 1 WHERE fees_units > 0");
    let found = books.desk.site.sql("SELECT subject FROM audit_recharge_accounts()");
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Goal: money that reaches the bank is one movement for its key, by one operator or by two.
#[test]
fn rch_036_a_settlement_is_booked_once_by_two_operators() {
    let site = Site::new().with("UBSCORE__APPROVAL__REQUIRED", "external");
    let books = Billing::on(site);
    books.credited("wechat", "a", day(3));
    let path = "channels/wechat/settle";
    let body = |amount: &str, key: &str| json!({"amount": amount, "idem_key": key, "reason": "the bank's statement"});
    for (wrong, status, code) in [
        (body("0", "b"), 400, "INVALID_AMOUNT"),
        (body("-0", "b"), 400, "INVALID_AMOUNT"),
        (body("--1", "b"), 400, "INVALID_AMOUNT"),
        (body("1", &"k".repeat(60)), 400, "INVALID_REQUEST"),
        (json!({"amount": "1", "reason": "x"}), 400, "INVALID_REQUEST"),
    ] {
        let reply = books.post(path, &wrong);
        assert_eq!(
            (reply.status, reply.json()["code"].clone()),
            (status, json!(code)),
            "{reply:?}"
        );
    }
    let asked = books.post(path, &body("99.40", "b-1"));
    assert_eq!(asked.status, 202, "{asked:?}");
    assert_eq!(booked(&books), Vec::<String>::new());
    let approve = format!("/admin/v1/approvals/{}/approve", text(&asked.json()["approval_id"]));
    let reason = json!({"reason": "a test"});
    assert_refused(&books.server.admin("POST", &approve, &reason), 403, "FORBIDDEN");
    let second = token(ADMIN + 1, Some(Role::Admin));
    let request = Request { body: Some(&reason), ..Request::new(&second, "POST", &approve) };
    let approved = send(books.server.ops, &request).expect("an answer");
    assert_eq!(approved.status, 200, "{approved:?}");
    let unit = account(&books, "wechat", "paid") / 10_000;
    let want = format!("bank/b-1 wechat/bank wechat/clearing {}", 9_940 * unit);
    assert_eq!(booked(&books), [want]);
    let again = books.post(path, &body("99.4", "b-1"));
    assert_eq!(again.status, 200, "{again:?}");
    assert_refused(&books.post(path, &body("99.41", "b-1")), 409, "IDEM_KEY_CONFLICT");
    assert_refused(
        &books.post("channels/card/settle", &body("99.4", "b-1")),
        409,
        "IDEM_KEY_CONFLICT",
    );
    assert_eq!(account(&books, "wechat", "bank"), 9_940 * unit);
    assert_eq!(account(&books, "wechat", "clearing"), 60 * unit);
    let audited = "SELECT actor FROM admin_audit WHERE action = 'channel settle'";
    let actor = books.desk.site.sql_value(audited);
    assert!(actor.contains("approved by"), "{actor}");
    books.is_whole();
}

/// Goal: a settlement of a wrong amount is taken back, once, and the account of a channel that has
/// left the configuration can be closed. Method: the command; a row as an earlier configuration has
/// left it.
#[test]
fn a_wrong_settlement_is_taken_back() {
    let books = Billing::new();
    books.credited("card", "a", day(3));
    let settles = |name: &str, amount: &str, more: &[&str]| {
        let key = format!("{name}-{amount}");
        let (ops, operator) = (format!("http://{}", books.server.ops), ADMIN.to_string());
        let mut words = vec!["channel", "settle", name, "--amount", amount, "--idem-key", &key];
        words.extend(["--reason", "a test", "--dev", "--ops", &ops, "--as", &operator]);
        words.extend(more);
        let (code, out, err) = said(&cli(&words));
        assert_eq!(code, 0, "{out}{err}");
        out
    };
    let unit = account(&books, "card", "paid") / 10_000;
    settles("card", "98.00", &[]);
    assert_eq!(account(&books, "card", "clearing"), 200 * unit);
    for _ in 0..2 {
        let says = settles("card", "-98", &[]);
        assert!(says.contains("booked: -98 CNY of channel card"), "{says}");
    }
    assert_eq!(account(&books, "card", "clearing"), 10_000 * unit);
    assert_eq!(account(&books, "card", "bank"), 0);
    let back = format!("bank/card--98 card/clearing card/bank {}", 9_800 * unit);
    assert!(booked(&books).contains(&back), "{:?}", booked(&books));
    books.desk.site.sql("INSERT INTO channels_tb (name, merchant) VALUES ('gone', 'm')");
    settles("gone", "1", &["--asset", "CNY"]);
    assert_eq!(account(&books, "gone", "bank"), 100 * unit);
    settles("gone", "-1", &["--asset", "CNY"]);
    assert_eq!(account(&books, "gone", "bank"), 0);
    let path = "channels/gone/settle";
    let body = json!({"amount": "1", "idem_key": "x", "reason": "a test"});
    assert_refused(&books.post(path, &body), 400, "INVALID_CHANNEL");
    let body = json!({"amount": "1", "asset": "CNY", "idem_key": "x", "reason": "a test"});
    assert_refused(&books.post("channels/never/settle", &body), 400, "INVALID_CHANNEL");
    books.is_whole();
}
