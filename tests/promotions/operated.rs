use super::*;
use crate::harness::{Request, send, token};
use ubscore::http::auth::Role;

/// Goal: operators make a promotion once, change what may change, and put money in once for a key.
#[test]
fn rch_028_operators_make_and_fund_a_promotion() {
    let desk = Recharging::new();
    let server = desk.start();
    for (field, value, code) in [
        ("asset", json!("NONE"), "INVALID_ASSET"),
        ("min_amount", json!("0"), "INVALID_AMOUNT"),
        ("min_amount", json!("-1"), "INVALID_AMOUNT"),
        ("bonus_max", json!("0.001"), "PRECISION_OVERFLOW"),
        ("basis_points", json!(0), "INVALID_REQUEST"),
        ("basis_points", json!(1_000_001), "INVALID_REQUEST"),
        ("fixed", json!("1"), "INVALID_REQUEST"),
        ("per_user_max", json!(0), "INVALID_REQUEST"),
        ("ends_at", json!("2020-01-01T00:00:00Z"), "INVALID_REQUEST"),
        ("status", json!("ON"), "INVALID_REQUEST"),
        ("available", json!("7"), "INVALID_REQUEST"),
        ("reason", json!(""), "INVALID_REQUEST"),
    ] {
        let reply = set(&server, NAME, &with(&terms(), field, value));
        assert_refused(&reply, 400, code);
    }
    assert_refused(&set(&server, "Spring", &terms()), 400, "INVALID_REQUEST");
    assert_refused(&fund(&server, NAME, "1", "fund-1"), 404, "NOT_FOUND");
    funded(&server, &terms(), "30");
    for term in ["asset", "min_amount", "basis_points", "bonus_max"] {
        let change = json!({"reason": "a test", term: terms()[term]});
        assert_refused(&set(&server, NAME, &change), 400, "INVALID_REQUEST");
    }
    let change = json!({"reason": "a test", "status": "STOPPED", "per_user_max": 2});
    let changed = set(&server, NAME, &change).json();
    assert_eq!((&changed["status"], &changed["per_user_max"]), (&json!("STOPPED"), &json!(2)));

    let again = fund(&server, NAME, "30.00", "fund-1");
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_refused(&fund(&server, NAME, "31", "fund-1"), 409, "IDEM_KEY_CONFLICT");
    for (amount, code) in
        [("-1", "INVALID_AMOUNT"), ("0", "INVALID_AMOUNT"), ("0.001", "PRECISION_OVERFLOW")]
    {
        assert_refused(&fund(&server, NAME, amount, "fund-2"), 400, code);
    }
    assert_refused(&fund(&server, NAME, "1", &"k".repeat(60)), 400, "INVALID_REQUEST");
    assert_sums(&server, ["30", "0", "0"]);
    let acted =
        desk.site.sql("SELECT action FROM admin_audit WHERE subject = 'spring' ORDER BY at");
    let acted: Vec<&str> = acted.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(acted, ["promotion create", "promotion fund", "promotion change"]);

    let (code, said) = server.operate(&[
        "promotion",
        "set",
        "autumn",
        "--asset",
        "CNY",
        "--min-amount",
        "10",
        "--fixed",
        "2",
        "--ends-at",
        "2200-01-01T00:00:00Z",
        "--reason",
        "a test",
    ]);
    assert_eq!((code, said.contains("autumn: ACTIVE, 0 CNY available")), (0, true), "{said}");
    let (code, said) = server.operate(&[
        "promotion",
        "fund",
        "autumn",
        "--amount",
        "5",
        "--idem-key",
        "fund-3",
        "--reason",
        "a test",
    ]);
    assert_eq!((code, said.contains("autumn: ACTIVE, 5 CNY available")), (0, true), "{said}");
    let (code, said) = server.operate(&["promotion", "list"]);
    assert!(code == 0 && said.contains("autumn") && said.contains("spring"), "{said}");
    let (code, said) = server.operate(&["promotion", "show", "spring"]);
    assert!(code == 0 && said.contains("STOPPED"), "{said}");
    assert_whole(&desk);
}

/// Goal: money for a promotion waits for two people where a withdrawal does.
#[test]
fn rch_036_funding_a_promotion_waits_for_two_people() {
    let desk = Recharging::on(Site::new().with("UBSCORE__APPROVAL__REQUIRED", "external"));
    let server = desk.start();
    assert_eq!(set(&server, NAME, &terms()).status, 200);
    let asked = fund(&server, NAME, "30", "fund-1");
    assert_eq!(asked.status, 202, "{asked:?}");
    assert_sums(&server, ["0", "0", "0"]);
    assert_refused(&fund(&server, NAME, "31", "fund-1"), 409, "IDEM_KEY_CONFLICT");
    let path = format!("/admin/v1/approvals/{}/approve", text(&asked.json()["approval_id"]));
    let body = json!({"reason": "a test"});
    let second = token(ADMIN + 1, Some(Role::Admin));
    let request = Request { body: Some(&body), ..Request::new(&second, "POST", &path) };
    let done = send(server.ops, &request).expect("an answer");
    assert_eq!(done.status, 200, "{done:?}");
    assert_sums(&server, ["30", "0", "0"]);
    let again = fund(&server, NAME, "30", "fund-1");
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_whole(&desk);
}
