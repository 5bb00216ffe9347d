//! Assets, development money, files and directories.

use serde_json::{Value, json};
use ubscore::alert::Alert;

use crate::alerts;
use crate::harness::{Balance, COIN, Server, Way, assert_refused};

const USER: u64 = 1001;

fn set_asset(server: &Server, symbol: &str, change: &Value) -> (u16, Value) {
    let mut body = change.clone();
    body["reason"] = json!("a test");
    let reply = server.admin("PUT", &format!("/admin/v1/assets/{symbol}"), &body);
    (reply.status, reply.json())
}

/// Goal: no change of a precision makes money. Method: the DBA's statement of the finding, refused; then carried out with
/// the trigger switched off, followed by the routine change of an asset that put it in force before.
#[test]
fn f02_a_precision_never_changes() {
    let (site, webhook) = alerts::site();
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "100");
    site.wait_for_rest();
    let precision =
        "UPDATE assets_tb SET precision = 6, min_transfer_amount = 0.01 WHERE symbol = 'USDT'";
    let session = site.session();
    for statement in [
        precision,
        "UPDATE assets_tb SET asset_id = 9 WHERE symbol = 'USDT'",
        "UPDATE assets_tb SET symbol = 'USDX' WHERE symbol = 'USDT'",
        "DELETE FROM assets_tb WHERE symbol = 'USDT'",
        "TRUNCATE assets_tb",
    ] {
        assert_eq!(session.sql_refused(statement), "UB003", "{statement}");
    }
    session.sql("UPDATE assets_tb SET min_transfer_amount = 0.01 WHERE symbol = 'USDT'");

    session.sql("ALTER TABLE assets_tb DISABLE TRIGGER USER");
    session.sql(precision);
    session.sql("UPDATE assets_tb SET status = 2 WHERE symbol = 'ETH'");
    let (status, btc) = set_asset(&server, "BTC", &json!({"max": "5"}));
    assert_eq!((status, &btc["max"]), (200, &json!("5")), "{btc}");
    // The change of one asset puts nothing of another one in force.
    let assets = server.get(USER, "/api/v1/assets").json();
    assert_eq!((&assets["assets"][1]["status"]), &json!("ACTIVE"), "{assets}");
    assert_eq!(assets["assets"][2]["precision"], json!(8), "{assets}");
    let had = Balance::at_rest(9_900 * COIN, 100 * COIN);
    assert_eq!(server.usdt(USER), had);
    let (status, usdt) = set_asset(&server, "USDT", &json!({"min": "0.1"}));
    assert_eq!(
        (status, &usdt["precision"], &usdt["status"]),
        (200, &json!(8), &json!("SUSPENDED"))
    );
    let told = alerts::assert_raised(&server, &webhook, Alert::AssetUnreadable);
    assert!(
        told["message"].as_str().expect("text").contains("asset 3 USDT: its precision"),
        "{told}"
    );
    assert_eq!(server.usdt(USER), had);
    assert_refused(&server.transfer(USER, Way::ToFunding, "10000"), 422, "ASSET_SUSPENDED");

    session.sql("UPDATE assets_tb SET precision = 8 WHERE symbol = 'USDT'");
    session.sql("ALTER TABLE assets_tb ENABLE TRIGGER USER");
    let (status, usdt) = set_asset(&server, "USDT", &json!({"status": "ACTIVE"}));
    assert_eq!((status, &usdt["status"]), (200, &json!("ACTIVE")), "{usdt}");
    server.transfer_committed(USER, Way::ToFunding, "100");
    site.wait_for_rest();
    site.assert_books(&server);
}

/// Goal: one bad row disarms nothing. Method: rows as a DBA may have left them; the brake is pulled on another asset, and
/// the service started again.
#[test]
fn f08_one_bad_row_disarms_nothing() {
    let (site, webhook) = alerts::site();
    let server = site.start();
    let session = site.session();
    let ten = "INSERT INTO assets_tb VALUES (9, 'TEN', 2, 1, TRUE, 0.001, 100)";
    assert_eq!(session.sql_refused(ten), "23514");
    // Rows of a database that was there before the rule.
    session.sql("ALTER TABLE assets_tb DROP CONSTRAINT assets_units_check");
    session.sql("ALTER TABLE assets_tb DROP CONSTRAINT assets_tb_precision_check");
    session.sql(ten);
    session.sql("INSERT INTO assets_tb VALUES (10, 'NINE', 9, 1, TRUE, 1, 100)");
    session.sql("INSERT INTO assets_tb VALUES (11, 'HUGE', 8, 1, TRUE, 1, 900000000000000000000)");
    let rule = "ALTER TABLE assets_tb ADD CONSTRAINT assets_units_check CHECK (\
                  min_transfer_amount = round(min_transfer_amount, precision) AND \
                  max_transfer_amount < 1000000000) NOT VALID";
    session.sql(rule);
    for status in ["SUSPENDED", "ACTIVE", "SUSPENDED"] {
        let (code, btc) = set_asset(&server, "BTC", &json!({"status": status}));
        assert_eq!((code, &btc["status"]), (200, &json!(status)), "{btc}");
    }
    let btc = Way::ToSpot.body_with_cid("BTC", "1", "btc");
    assert_refused(&server.post(USER, &btc), 422, "ASSET_SUSPENDED");
    server.stop();

    let server = site.start();
    alerts::assert_raised(&server, &webhook, Alert::AssetUnreadable);
    for told in [
        "asset 9 TEN: min_transfer_amount 0.001 is no amount of 2 decimals; the asset is suspended",
        "asset 10 NINE: its precision cannot be read; the asset is left out",
        "asset 11 HUGE: max_transfer_amount 900000000000000000000 is no amount of 8 decimals",
    ] {
        server.says(told);
    }
    assert_refused(&server.post(USER, &btc), 422, "ASSET_SUSPENDED");
    server.change_asset("BTC", json!({"status": "ACTIVE"}));
    assert_eq!(server.post_ended(USER, &btc).status, 200);
    assert_refused(&server.post(USER, &Way::ToSpot.body("TEN", "1")), 422, "ASSET_SUSPENDED");
    assert_refused(&server.post(USER, &Way::ToSpot.body("NINE", "1")), 400, "INVALID_ASSET");
    // What is wrong is said, and it is mended in the same way.
    let (code, said) = set_asset(&server, "TEN", &json!({"max": "50"}));
    let message = said["message"].as_str().expect("text");
    assert_eq!((code, &said["code"]), (400, &json!("INVALID_REQUEST")), "{said}");
    assert!(message.contains("assets_units_check"), "{said}");
    let (code, ten) = set_asset(&server, "TEN", &json!({"min": "0.01"}));
    assert_eq!((code, &ten["status"]), (200, &json!("ACTIVE")), "{ten}");
    site.wait_for_rest();
    site.assert_books(&server);
}
