//! The command line and what people read: each defect that three strangers met, played again.

use serde_json::json;

use crate::harness::{Reply, Request, Server, Site, external, send, text, token};
use ubscore::http::auth::Role;

const NEW: u64 = 5005;
const MAKER: u64 = 9_001;
const DEPOSITS: &str = "/admin/v1/deposits";

/// Posts a deposit with a reason as an operator.
fn deposit(server: &Server, idem_key: &str, amount: &str, reason: &str) -> Reply {
    let mut body = external(NEW, "USDT", amount, idem_key);
    body["reason"] = json!(reason);
    let token = token(MAKER, Some(Role::Admin));
    let request = Request { body: Some(&body), ..Request::new(&token, "POST", DEPOSITS) };
    send(server.ops, &request).expect("an answer")
}

/// Story: deposits refused `reason`, replays looked like first answers, and the second approver read "external".
#[test]
fn an_external_operation_keeps_its_reason_and_marks_its_replay() {
    let site = Site::new();
    let server = site.start();
    let first = deposit(&server, "in-1", "3", "block 880123");
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{first:?}");
    let again = deposit(&server, "in-1", "3.0", "asked again");
    assert_eq!((again.status, again.json()), (200, first.json()));
    assert_eq!(again.header("idempotent-replayed"), Some("true"), "{again:?}");
    let conflict = deposit(&server, "in-1", "4", "another amount");
    assert_eq!(conflict.refusal(), (409, "IDEM_KEY_CONFLICT".to_owned()));
    let asked =
        "SELECT actor, subject, detail, reason FROM admin_audit WHERE action = 'deposit asked'";
    let row = ["admin/9001", "in-1", "3 USDT of user 5005", "block 880123"];
    assert_eq!(site.sql(asked), [row.map(str::to_owned).to_vec()]);
    for bad in ["", "two\nlines"] {
        assert_eq!(
            deposit(&server, "in-2", "1", bad).refusal(),
            (400, "INVALID_REQUEST".to_owned())
        );
    }
    server.stop();

    let server = site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external").start();
    let asked = deposit(&server, "in-3", "5", "ticket 17");
    assert_eq!(asked.status, 202, "{asked:?}");
    assert_eq!(text(&asked.json()["reason"]), "ticket 17");
    let listed = server.admin_get("/admin/v1/approvals").json();
    assert_eq!(text(&listed["approvals"][0]["reason"]), "ticket 17");
    // Replays of what was decided need no approval.
    let again = deposit(&server, "in-1", "3", "asked again");
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    site.assert_books(&server);
}
