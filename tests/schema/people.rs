//! The views for people: decimals, ULIDs and names in the place of numbers.

use domain::code::Code;
use domain::transfer::{Op, ReqId};
use serde_json::json;

use crate::harness::{Site, Way};

const USER: u64 = 1001;

/// Goal: a name of a code, and the text of a ULID, is the same in Rust and PostgreSQL. Method: each
/// code and a number that is none; the lowest, the highest and other ULIDs, both ways; texts that
/// are no ULID.
#[test]
fn rust_and_postgresql_name_codes_and_ulids_alike() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    let named =
        |number: u16| session.sql(&format!("SELECT code_name({number}::smallint)"))[0][0].clone();
    for code in Code::of_service() {
        assert_eq!(named(code as u16), code.name());
    }
    assert_eq!(named(9999), "9999");
    for number in [1, 31, 32, 1 << 64, u128::MAX / 3, u128::MAX - 1, u128::MAX] {
        let text = ReqId::new(number).expect("not zero").to_string();
        let both = format!(
            "SELECT replace(ulid_uuid('{text}')::text, '-', ''), \
             ulid_text('{number:032x}'), ulid_uuid(lower('{text}')) = '{number:032x}'"
        );
        assert_eq!(session.sql(&both), [[format!("{number:032x}"), text, "t".to_owned()]]);
    }
    for text in [
        "",
        "01ARZ3NDEKTSV4RRFFQ69G5FA",
        "81ARZ3NDEKTSV4RRFFQ69G5FAV",
        "01ARZ3NDEKTSV4RRFFQ69G5FAU",
    ] {
        let refused = session.sql_refused(&format!("SELECT ulid_uuid('{text}')"));
        assert_eq!(refused, "22P02", "{text}");
    }
}

/// Goal: people read 100.5 and INSUFFICIENT_BALANCE. Method: a transfer that is refused, one that
/// is not, and money from outside, read in each view.
#[test]
fn the_views_show_decimals_ulids_and_names() {
    let site = Site::new();
    let server = site.start();
    server.deposit(USER, "USDT", "0.5");
    let done = server.transfer(USER, Way::ToSpot, "100.5").req_id();
    let refused = server.transfer(USER, Way::ToSpot, "999999");
    assert_eq!(refused.json()["code"], json!("INSUFFICIENT_BALANCE"));
    site.wait_for_rest();
    let row = |statement: &str| site.sql(statement).concat().join(" ");
    let of = |columns: &str, req_id: &str| {
        format!("SELECT {columns} FROM transfers WHERE req_id = '{req_id}'")
    };
    assert_eq!(row(&of("asset, amount, funding_after", &done)), "USDT 100.5 9900");
    let columns = "amount, code, funding_code";
    let (refused, twice) = (refused.req_id(), "INSUFFICIENT_BALANCE INSUFFICIENT_BALANCE");
    assert_eq!(row(&of(columns, &refused)), format!("999999 {twice}"));
    let operations = "SELECT op, outcome, code, amount, balance_after FROM transfer_operations \
                      WHERE req_id = ";
    assert_eq!(row(&format!("{operations}'{done}'")), "1 1  100.5 9900");
    assert_eq!(row(&format!("{operations}'{refused}'")), "1 2 INSUFFICIENT_BALANCE 999999 ");
    let outside = "SELECT asset, op, outcome, amount, balance_after FROM externals \
                   ORDER BY order_number DESC LIMIT 1";
    assert_eq!(row(outside), format!("USDT {} 1 0.5 10000.5", Op::ExtDeposit as u8));
    let balance =
        format!("SELECT available, frozen FROM balances WHERE user_id = {USER} AND asset = 'USDT'");
    assert_eq!(row(&balance), "9900 0");
    assert_eq!(row("SELECT min_transfer_amount FROM assets WHERE symbol = 'BTC'"), "0.00000001");
    server.stop();
}
