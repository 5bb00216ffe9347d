//! The operators' console in a real Chromium: its contents for each role, its actions, and its
//! handling of malicious strings.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thirtyfour::Key;
use ubscore::http::auth::{Owner, Role};

use crate::harness::{
    ADMIN, Browser, Request, Screen, Server, Session, Site, Way, assert_refused, eventually,
    external, send, token,
};

const USER: u64 = 1001;
const APPROVER: u64 = ADMIN + 1;
const DESK: Screen = Screen { width: 1280, height: 900, phone: false, dark: false };
const DARK: Screen = Screen { dark: true, ..DESK };
const PHONE: Screen = Screen { width: 390, height: 844, phone: true, dark: false };
/// Markup that sets a mark in the page if the page ever executes it.
const HOSTILE: &str =
    "<img src=x onerror='window.harmed=1'><script>window.harmed=1</script>&lt;b&gt;\"'`${1}";

/// A site on which a transfer counts as stuck soon and lock waits end soon.
fn site() -> Site {
    Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 300)
        .with("UBSCORE__ALERT__STUCK_MS", 1_000)
}

/// Opens the console and signs in.
fn sign_in(browser: &Browser, server: &Server, operator: u64) {
    browser.open(&format!("http://{}/console", server.ops));
    browser.type_into("#token", &token(operator, Some(Role::Admin)));
    browser.key(Key::Enter);
    browser.wait_for("#operator", &format!("operator {operator}"));
}

/// Gives a reason for the proposed action, and confirms it.
fn confirm(browser: &Browser, title: &str, reason: &str) {
    browser.wait_for("#action-title", title);
    browser.type_into("#reason", reason);
    browser.press("#action-do");
}

fn find(browser: &Browser, text: &str) {
    browser.type_into("#sought", text);
    browser.press("#find button");
}

/// A transfer of 12 coins that rests while the session holds the user's balance. All earlier
/// transfers have ended before.
fn stick(site: &Site, server: &Server, cid: &str) -> (Session, String) {
    site.wait_for_rest();
    let lock = site.lock_usdt(&[USER]);
    let reply = server.post_pending(USER, &Way::ToFunding.body_with_cid("USDT", "12", cid));
    (lock, reply.req_id())
}

fn assert_no_complaints(browser: &Browser) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// The rows of an action in `admin_audit`, newest first: action, actor and reason.
fn audit(site: &Site, action: &str) -> Vec<String> {
    let rows = format!(
        "SELECT action, actor, reason FROM admin_audit WHERE action = '{action}' ORDER BY id DESC"
    );
    site.sql(&rows).into_iter().map(|row| row.join(" ")).collect()
}

/// Goal: an operator sees a stuck transfer without loading the page again, sees where its money is,
/// retries it at once, and finds it later by its cid. Method: a transfer with a locked target, from
/// its first moment to its end.
#[test]
fn a_stuck_transfer_is_seen_tried_and_found() {
    let site = site();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    let browser = Browser::start();
    sign_in(&browser, &server, ADMIN);
    browser.wait_for("#stuck", "Nothing is stuck.");
    browser.wait_for("#service-state", "taking transfers");
    browser.wait_for("#money", "USDT");

    let (lock, req_id) = stick(&site, &server, "stuck-1");
    // On a slow machine it may still be in an earlier state when it first counts as stuck.
    let row = browser.wait_for("#stuck", "FUNDING to DEPOSIT");
    for shown in [&req_id, "stuck-1", "12 USDT", "SPOT → FUNDING"] {
        assert!(row.contains(shown), "{shown:?}: {row}");
    }
    browser.wait_for("#stuck-title", "Stuck: 1");
    // The place of the money: UBSCore has paid, Funding has not credited, and both add up.
    browser.wait_for("#money", "12");
    let cells = "return [...document.querySelectorAll('#money tr')]\
                 .filter((row) => row.cells[0].innerText === 'USDT')\
                 .map((row) => [...row.cells].map((cell) => cell.innerText))[0]";
    let usdt = eventually("12 in flight", || {
        let row = browser.run(cells, Value::Null);
        (row[3] == json!("12")).then_some(row)
    });
    assert_eq!((&usdt[2], &usdt[6]), (&json!("38"), &json!("0")), "{usdt}");

    browser.press_button("#stuck", &req_id);
    let shown = browser.wait_for("#found", "record");
    let order = ["INIT", "SPOT WITHDRAW 12: SUCCESS, balance afterwards 38 (record "];
    let places = order.map(|event| shown.find(event).unwrap_or_else(|| panic!("{event}: {shown}")));
    assert!(places.is_sorted(), "{shown}");
    assert!(!shown.contains("COMMITTED"), "{shown}");

    // The retry is pressed while the lock is held, so that the transfer cannot end by itself
    // before.
    browser.press_button("#found", "Retry");
    confirm(&browser, "Retry now", "the lock is going");
    browser.wait_for("#said", &format!("Transfer {req_id} is retried now"));
    lock.sql("ROLLBACK");
    // The page updates without any input.
    let ended = browser.wait_for("#found", "COMMITTED");
    assert!(ended.contains("FUNDING DEPOSIT 12: SUCCESS"), "{ended}");
    browser.wait_for("#stuck", "Nothing is stuck.");
    assert_eq!(
        audit(&site, "transfer retry"),
        [format!("transfer retry admin/{ADMIN} the lock is going")]
    );

    find(&browser, "stuck-1");
    let found = browser.wait_for("#found", "With this cid");
    assert!(found.contains(&req_id) && found.contains("COMMITTED"), "{found}");
    // The address names the shown item, and restores it after the next sign-in.
    find(&browser, &req_id);
    browser.wait_for("#found", "What happened");
    browser.run("location.reload()", Value::Null);
    browser.wait_for("#entrance", "Sign in");
    browser.type_into("#token", &token(ADMIN, Some(Role::Admin)));
    browser.key(Key::Enter);
    browser.wait_for("#found", "What happened");
    assert_no_complaints(&browser);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: an operator finds a transaction, sees its branches, legs and history, and aborts it with a
/// second operator's consent. Method: one that its caller leaves open, and one that is done.
#[test]
fn a_transaction_is_found_and_aborted_by_two_operators() {
    let site = site().with("UBSCORE__APPROVAL__REQUIRED", "transaction");
    let server = site.start();
    let service = token(1, Owner::new("shop").map(Role::Service));
    let post = |path: &str, body: &Value| {
        let path = format!("/api/v1/transactions{path}");
        let request = Request { body: Some(body), ..Request::new(&service, "POST", &path) };
        let reply = send(server.http, &request).expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    let place = |user: u64| json!({"account": "FUNDING", "user_id": user});
    let legs = json!([{"from": place(USER), "to": place(1002), "asset": "USDT", "amount": "3"}]);
    let prepare = json!({"round": 1, "decide": "caller", "legs": legs});
    post("/order:1/prepare", &prepare);
    post("", &json!({"tx_id": "order:2", "legs": legs}));
    let (maker, approver) = (Browser::start(), Browser::start());
    sign_in(&maker, &server, ADMIN);
    sign_in(&approver, &server, APPROVER);
    let listed = maker.wait_for("#transactions", "order:1");
    assert!(listed.contains("shop") && !listed.contains("order:2"), "{listed}");
    let id = server.admin_get("/admin/v1/transactions").json()["transactions"][0]["transaction_id"]
        .as_str()
        .expect("text")
        .to_owned();
    maker.press_button("#transactions", &id);
    let shown = maker.wait_for("#transaction", "What happened");
    for part in ["OPEN", "FUNDING", "TRIED", "3 USDT", "by shop", "1001", "1002"] {
        assert!(shown.contains(part), "{part:?}: {shown}");
    }
    maker.press_button("#transaction", "Ask again");
    confirm(&maker, "Ask again now", "a look");
    maker.wait_for("#said", &format!("The parties of transaction {id} are asked now"));
    maker.press_button("#transaction", "Abort");
    confirm(&maker, "Abort", "the caller is gone");
    maker.wait_for("#said", "This waits for another operator: approval ");
    approver.wait_for("#approvals", "the caller is gone");
    approver.press_button("#approvals", "Approve");
    confirm(&approver, &format!("Approve: transaction {id}"), "agreed");
    maker.wait_for("#transaction", "CANCELLED");
    maker.wait_for("#transactions", "Nothing is under way.");
    assert_eq!(
        audit(&site, "transaction abort"),
        [format!(
            "transaction abort admin/{ADMIN}, approved by admin/{APPROVER} the caller is gone"
        )]
    );
    // The filter.
    maker.type_into("#transactions-tx_id", "order:2");
    maker.press("#transactions-filter button");
    let listed = maker.wait_for("#transactions", "order:2");
    assert!(listed.contains("DONE") && !listed.contains("order:1"), "{listed}");
    maker.type_into("#transactions-owner", "a b");
    maker.press("#transactions-filter button");
    maker.wait_for("#transactions-problem", "owner must be 1 to 64");
    let mut complaints = maker.complaints();
    // The browser reports the refusal above as a failed request.
    complaints.retain(|complaint| !(complaint.contains("owner=") && complaint.contains("400")));
    assert_eq!((complaints, approver.complaints()), (vec![], vec![]));
    site.wait_for_rest();
    site.assert_verified();
}

/// Goal: an account is found by its user, frozen with a reason, and unfrozen. Method: by keyboard
/// alone.
#[test]
fn an_account_is_frozen_by_keyboard_alone() {
    let site = site();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    let browser = Browser::start();
    sign_in(&browser, &server, ADMIN);
    let focused = || browser.run("return document.activeElement.innerText ?? ''", Value::Null);
    // From the field to the button, with as many Tabs as needed.
    let tab_to = |wanted: &str| {
        for _ in 0..200 {
            browser.key(Key::Tab);
            if focused() == json!(wanted) {
                return;
            }
        }
        panic!("Tab never comes to {wanted:?}");
    };
    browser.run("document.querySelector('#sought').focus()", Value::Null);
    for _ in 0..2 {
        browser.type_into("#sought", &USER.to_string());
        browser.key(Key::Enter);
        let user = browser.wait_for("#found", "Newest transfers");
        for shown in ["User 1001", "FUNDING: ACTIVE", "SPOT: ACTIVE", "9950", "COMMITTED"] {
            assert!(user.contains(shown), "{shown:?}: {user}");
        }
    }
    tab_to("Freeze FUNDING");
    browser.key(Key::Enter);
    browser.wait_for("#action-title", "Freeze FUNDING of user 1001");
    // Escape is no consent, and an empty reason is none either. The focus returns to its place,
    // though the element there has been replaced.
    let button = "return (window.button ??= document.querySelector('[data-key=\"Freeze FUNDING\"]')).isConnected";
    eventually("the user is shown anew", || {
        (browser.run(button, Value::Null) == json!(false)).then_some(())
    });
    browser.key(Key::Escape);
    eventually("the dialog is closed", || browser.text("#action-title").is_empty().then_some(()));
    eventually("the focus is back", || (focused() == json!("Freeze FUNDING")).then_some(()));
    browser.key(Key::Enter);
    browser.wait_for("#action-title", "Freeze FUNDING of user 1001");
    tab_to("Freeze");
    browser.key(Key::Enter);
    server.transfer_committed(USER, Way::ToSpot, "1");
    browser.run("document.querySelector('#reason').focus()", Value::Null);
    browser.type_into("#reason", "a lost phone");
    tab_to("Freeze");
    browser.key(Key::Enter);
    browser.wait_for("#said", "FUNDING of user 1001 is FROZEN.");
    browser.wait_for("#found", "FUNDING: FROZEN");
    assert_refused(&server.transfer_ended(USER, Way::ToSpot, "1"), 422, "ACCOUNT_FROZEN");
    assert_eq!(
        audit(&site, "account status"),
        [format!("account status admin/{ADMIN} a lost phone")]
    );
    tab_to("Activate FUNDING");
    browser.key(Key::Enter);
    confirm(&browser, "Activate FUNDING", "found again");
    browser.wait_for("#found", "FUNDING: ACTIVE");
    server.transfer_accepted(USER, Way::ToSpot, "1");
    assert_no_complaints(&browser);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Story: JavaScript rounds a long number to another user's. The page asked about the one user and
/// froze the other.
#[test]
fn a_user_with_a_long_number_is_frozen_and_nobody_else() {
    const LONG: u64 = 9_007_199_254_740_993;
    let site = site();
    let server = site.start();
    // A user without an account cannot be frozen.
    let deposit = external(LONG, "USDT", "1", "long");
    assert_eq!(server.admin("POST", "/admin/v1/deposits", &deposit).status, 200);
    let browser = Browser::start();
    sign_in(&browser, &server, ADMIN);
    find(&browser, &LONG.to_string());
    browser.wait_for("#found", &format!("User {LONG}"));
    browser.press_button("#found", "Freeze SPOT");
    confirm(&browser, &format!("Freeze SPOT of user {LONG}"), "a court's order");
    browser.wait_for("#found", "SPOT: FROZEN");
    let spot = |user: u64| {
        let accounts = server.admin_get(&format!("/admin/v1/accounts/{user}")).json();
        accounts["accounts"][1]["status"].clone()
    };
    assert_eq!(
        [spot(LONG - 1), spot(LONG), spot(LONG + 1)],
        [Value::Null, json!("FROZEN"), Value::Null]
    );
    assert_no_complaints(&browser);
}

/// Goal: halts, pauses and actions of two people work from the page. Method: one operator halts and
/// asks for the resume, another one approves it.
#[test]
fn two_operators_end_a_halt() {
    let site = site().with("UBSCORE__APPROVAL__REQUIRED", "resume");
    let server = site.start();
    let (maker, approver) = (Browser::start(), Browser::start());
    sign_in(&maker, &server, ADMIN);
    sign_in(&approver, &server, APPROVER);
    approver.wait_for("#approvals", "Two operators are needed for: resume.");

    maker.press("#halt");
    confirm(&maker, "Halt all money", "an exercise");
    maker.wait_for("#said", "The halt is in force.");
    for browser in [&maker, &approver] {
        browser.wait_for("#service-state", "HALTED");
        browser.wait_for("#halted", "an exercise");
    }
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SERVICE_HALTED");
    maker.press("#resume");
    confirm(&maker, "Resume", "the exercise is over");
    maker.wait_for("#said", "This waits for another operator: approval ");
    approver.wait_for("#approvals", "the exercise is over");
    maker.wait_for("#approvals", "the exercise is over");
    // An operator cannot approve their own request.
    maker.press_button("#approvals", "Approve");
    confirm(&maker, "Approve: resume", "myself");
    maker.wait_for("#action-problem", "FORBIDDEN");
    maker.press("#action-cancel");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SERVICE_HALTED");
    approver.press_button("#approvals", "Approve");
    confirm(&approver, "Approve: resume", "agreed");
    for browser in [&maker, &approver] {
        browser.wait_for("#service-state", "taking transfers");
        browser.wait_for("#approvals", "None.");
    }
    server.transfer_accepted(USER, Way::ToSpot, "1");

    eventually("the assets are there to choose from", || {
        let choose = "const field = document.querySelector('#pause-asset'); field.value = 'USDT'; return field.value";
        (maker.run(choose, Value::Null) == json!("USDT")).then_some(())
    });
    maker.press("#pause button");
    confirm(&maker, "Pause USDT, both directions", "a fork");
    maker.wait_for("#pauses", "a fork");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 422, "TRANSFER_NOT_ALLOWED");
    maker.press_button("#pauses", "Unpause");
    confirm(&maker, "Let USDT, both directions go on", "no fork");
    maker.wait_for("#pauses", "Nothing is paused.");
    server.transfer_accepted(USER, Way::ToSpot, "1");
    maker.press("#snapshot");
    confirm(&maker, "Make a snapshot", "before the upgrade");
    maker.wait_for("#said", "A snapshot that stands behind record ");
    maker.press("#check");
    maker.wait_for("#checked", "Everything adds up");
    let mut complaints = maker.complaints();
    // The browser reports the refusal above as a failed request.
    complaints.retain(|complaint| !(complaint.contains("/approve") && complaint.contains("403")));
    assert_eq!((complaints, approver.complaints()), (vec![], vec![]));
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: without the admin role the page shows only the sign-in, and no part of a session is left
/// behind. Method: no token, nonsense, a user's token, a viewer's; then a session that signs out,
/// and a session during a change of its key.
#[test]
fn whoever_is_no_admin_sees_nothing() {
    let site = site();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    let browser = Browser::start();
    browser.open(&format!("http://{}/console", server.ops));
    browser.wait_for("#entrance", "Sign in");
    let seen = |browser: &Browser| {
        let script = "return [document.querySelector('#desk').checkVisibility(), \
             document.querySelector('#standing').checkVisibility(), \
             localStorage.length + sessionStorage.length + document.cookie.length, \
             document.querySelectorAll('#tiles div, #money tr, #oldest *, #stuck *, #gauges div').length]";
        browser.run(script, Value::Null)
    };
    let nothing = json!([false, false, 0, 0]);
    assert_eq!(seen(&browser), nothing);
    for (given, message) in [
        ("nonsense".to_owned(), "This token is not accepted."),
        (token(USER, None), "This token is not one of an operator with the role admin."),
        (
            token(USER, Some(Role::Viewer)),
            "This token is not one of an operator with the role admin.",
        ),
    ] {
        browser.type_into("#token", &given);
        browser.press("#sign-in button");
        browser.wait_for("#sign-in-problem", message);
        assert_eq!(seen(&browser), nothing, "{message}");
        let field = browser.run("return document.querySelector('#token').value", Value::Null);
        assert_eq!(field, json!(""), "a token stays to be read");
    }
    // The server itself checks the roles, and not only the page.
    for (role, status) in [(None, 403), (Some(Role::Viewer), 403), (Some(Role::Admin), 200)] {
        let given = token(USER, role);
        let session = send(server.ops, &Request::new(&given, "GET", "/admin/v1/session"));
        assert_eq!(session.expect("an answer").status, status, "{role:?}");
    }

    sign_in(&browser, &server, ADMIN);
    browser.wait_for("#money", "USDT");
    assert_eq!(seen(&browser)[2], json!(0), "a session is stored");
    browser.press("#sign-out");
    browser.wait_for("#entrance", "Sign in");
    assert_eq!(seen(&browser), nothing);

    // The server is stopped, and returns with another key.
    sign_in(&browser, &server, ADMIN);
    browser.wait_for("#money", "USDT");
    let ops = server.ops.to_string();
    server.stop();
    browser.wait_for("#asked", "The server does not answer.");
    let site =
        site.with("UBSCORE__AUTH__SECRET", "another secret that is long enough, as it must be");
    let _server = Server::start(site.command_on("127.0.0.1:0", &ops));
    browser.wait_for("#sign-in-problem", "The session has ended");
    assert_eq!(seen(&browser), nothing);
}

/// Goal: text from other people stays text on the page. Method: markup as the reason of a pause and
/// of a halt, as a cid written into PostgreSQL, as a search text, in the address and by hand; and
/// the browser's report that it admits neither inline scripts nor markup out of strings.
#[test]
fn hostile_strings_stay_text() {
    let site = site();
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "50");
    site.wait_for_rest();
    let body = Way::ToSpot.body_with_cid("USDT", "1", HOSTILE);
    assert_refused(&server.post(USER, &body), 400, "INVALID_REQUEST");
    let paused = json!({"asset": "BTC", "paused": true, "reason": HOSTILE});
    assert_eq!(server.admin("PUT", "/admin/v1/pauses", &paused).status, 200);
    assert_eq!(server.admin("POST", "/admin/v1/halt", &json!({"reason": HOSTILE})).status, 200);
    let browser = Browser::start();
    browser.open(&format!("http://{}/console#{HOSTILE}", server.ops));
    browser.type_into("#token", &token(ADMIN, Some(Role::Admin)));
    browser.key(Key::Enter);
    browser.wait_for("#find-problem", HOSTILE);
    browser.wait_for("#pauses", HOSTILE);
    browser.wait_for("#halted", HOSTILE);
    browser.press_button("#pauses", "Unpause");
    confirm(&browser, "Let BTC", HOSTILE);
    browser.wait_for("#pauses", "Nothing is paused.");
    assert_eq!(audit(&site, "unpause"), [format!("unpause admin/{ADMIN} {HOSTILE}")]);

    // A cid that no client could have sent.
    let markup = "<img src=x onerror=window.harmed=1>";
    let req_id = site.sql_value("SELECT req_id FROM transfers LIMIT 1");
    site.sql(&format!(
        "SET session_replication_role = replica; UPDATE transfers_tb SET cid = '{markup}'"
    ));
    find(&browser, &req_id);
    let shown = eventually("the transfer or why it is not shown", || {
        let shown = browser.text("#found") + browser.text("#find-problem").as_str();
        (!shown.is_empty() && !shown.contains("<script>")).then_some(shown)
    });
    println!("{shown}");
    let harm = "return [window.harmed ?? null, document.querySelectorAll('img, script:not([src]), b').length]";
    assert_eq!(browser.run(harm, Value::Null), json!([null, 0]));
    // The second line of defense, in case the page ever makes markup of a string.
    for attempt in [
        "document.querySelector('#said').innerHTML = '<b>x</b>'",
        "document.querySelector('#said').setAttribute('onclick', 'window.harmed=1'); document.querySelector('#said').click()",
        "setTimeout('window.harmed=1')",
        "const script = document.createElement('script'); script.append('window.harmed=1'); document.body.append(script); script.remove()",
    ] {
        browser.run(&format!("try {{ {attempt} }} catch (refused) {{ }}"), Value::Null);
        assert_eq!(browser.run(harm, Value::Null), json!([null, 0]), "{attempt}");
    }
}

/// Every file of the page has the headers that restrict a browser to the needs of the page.
#[test]
fn every_file_is_served_with_its_policy() {
    let site = site();
    let server = site.start();
    let get = |path: &str| send(server.ops, &Request::new("", "GET", path)).expect("an answer");
    let page = get("/console");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/ops/console");
    let mut names = 0;
    for file in fs::read_dir(files).expect("a directory") {
        let path = file.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
        let reply = get(&format!("/console/{name}"));
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
        let policy = reply.header("content-security-policy").expect("a policy");
        for part in
            ["default-src 'none'", "script-src 'self';", "require-trusted-types-for 'script'"]
        {
            assert!(policy.contains(part), "{name}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{name}: {policy}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{name}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{name}");
        let text = fs::read_to_string(&path).expect("text");
        for foreign in ["https://", "innerHTML", "insertAdjacent", "eval(", " style=", " onclick="]
        {
            assert!(!text.contains(foreign), "{name} has {foreign:?}");
        }
        names += 1;
    }
    assert!(names >= 10, "{names} files");
    assert_refused(&get("/console/passwd"), 404, "NOT_FOUND");
    assert_refused(&get("/console/../metrics"), 404, "NOT_FOUND");
}

/// The directory of the accessibility rules, as set by the environment or by `make test`.
fn axe() -> String {
    let fixed = || {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/axe/axe_playwright_python/axe.min.js")
    };
    let path = env::var_os("AXE").map_or_else(fixed, PathBuf::from);
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; `make test` puts it there", path.display()))
}

/// The shown page keeps every rule of WCAG 2.2 AA that axe knows, and its best practice.
fn assert_accessible(browser: &Browser, axe: &str, what: &str) {
    let judge = format!(
        "{axe}; return axe.run(document, {{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', \
         'best-practice']}}).then((found) => [found.passes.length, found.violations.map((rule) => \
         [rule.id, ...rule.nodes.map((node) => `${{node.html}} ${{node.failureSummary}}`)])])"
    );
    let judged = browser.run(&judge, Value::Null);
    assert_eq!(judged[1], json!([]), "{what}: {judged:#}");
    assert!(judged[0].as_u64().is_some_and(|passes| passes > 20), "{what}: {judged}");
}

/// Goal: the page is readable for all users, on every screen. Method: with contents in every part,
/// on a desktop, in dark mode and on a phone, every rule of WCAG 2.2 AA that axe knows; on the
/// phone no element is wider than the screen. The pictures are in `target/console` for a look by
/// hand.
#[test]
fn the_page_is_accessible_in_light_in_dark_and_on_a_phone() {
    let site = site().with("UBSCORE__APPROVAL__REQUIRED", "external");
    let server = site.start();
    for amount in ["50", "1", "2.5", "100000"] {
        server.transfer(USER, Way::ToSpot, amount);
    }
    let body = json!({"user_id": USER, "asset": "BTC", "amount": "3", "idem_key": "a-large-one"});
    assert_eq!(server.admin("POST", "/admin/v1/deposits", &body).status, 202);
    let paused =
        json!({"asset": "ETH", "direction": "SPOT_TO_FUNDING", "paused": true, "reason": "a fork"});
    assert_eq!(server.admin("PUT", "/admin/v1/pauses", &paused).status, 200);
    let special = "SELECT special_set(user_id, asset_id) FROM balances WHERE asset = 'USDT'";
    site.sql(&format!("{special} AND user_id = {USER}"));
    let (_lock, req_id) = stick(&site, &server, "withdraw-2026-11-22");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/console");
    fs::create_dir_all(&directory).expect("a directory");
    let axe = axe();

    let browser = Browser::start();
    browser.look_through(DESK);
    browser.open(&format!("http://{}/console", server.ops));
    browser.wait_for("#entrance", "Sign in");
    browser.photograph(DESK, &directory.join("entrance.png"));
    sign_in(&browser, &server, ADMIN);
    browser.press_button("#stuck", &req_id);
    browser.wait_for("#found", "What happened");
    browser.wait_for("#tiles", "p99");
    browser.wait_for("#money", "USDT");
    browser.wait_for("#specials", "may be below zero");
    browser.wait_for("#approvals", "a-large-one");
    browser.wait_for("#pauses", "a fork");
    browser.wait_for("#letters", "None.");
    // This gives the plots lines.
    let lines = "return document.querySelectorAll('#throughput polyline').length";
    for amount in 1..=20 {
        server.transfer(1002, Way::ToSpot, &format!("0.{amount}"));
    }
    eventually("lines in the plots", || {
        (browser.run(lines, Value::Null) == json!(2)).then_some(())
    });
    for (screen, name) in [(DESK, "light"), (DARK, "dark"), (PHONE, "phone")] {
        browser.look_through(screen);
        eventually(&format!("{name} to be shown"), || {
            let ground = "return getComputedStyle(document.body).backgroundColor";
            let dark = browser.run(ground, Value::Null) == json!("rgb(15, 21, 27)");
            (dark == screen.dark).then_some(())
        });
        assert_accessible(&browser, &axe, name);
        let wide = browser
            .run("return document.documentElement.scrollWidth - window.innerWidth", Value::Null);
        assert!(wide.as_i64().is_some_and(|wide| wide <= 0), "{name} is {wide} px too wide");
        browser.photograph(screen, &directory.join(format!("{name}.png")));
    }
    browser.look_through(DESK);
    find(&browser, &USER.to_string());
    browser.wait_for("#found", "Newest transfers");
    assert_accessible(&browser, &axe, "a user");
    browser.press("#halt");
    browser.wait_for("#action-title", "Halt all money");
    assert_accessible(&browser, &axe, "the dialog");
    browser.photograph(DESK, &directory.join("dialog.png"));
}
