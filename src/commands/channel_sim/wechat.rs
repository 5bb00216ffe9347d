//! The simulator's side of WeChat Pay, API v3.

use jiff::Timestamp;
use jiff::tz::Offset;
use serde_json::{Value, json};

use super::books::{Books, Format, Line, SimOrder, SimPayment, SimReturn};
use super::door::{Asked, Reply};
use super::fault::BillFault;
use super::keys::{APPID, MCHID, MERCHANT_SERIAL};
use super::{Sim, courier, crypto};

/// Answers one signed request.
pub(super) fn answer(sim: &Sim, asked: &Asked) -> Reply {
    if !is_signed(sim, asked) {
        return Reply::json(401, &json!({"code": "SIGN_ERROR", "message": "simulated"}));
    }
    let parts = asked.parts();
    let mut reply = match (asked.method.as_str(), &parts[1..]) {
        ("POST", ["pay", "transactions", "native"]) => create(sim, &asked.json()),
        ("GET", ["pay", "transactions", "out-trade-no", no]) => query(sim, no),
        ("POST", ["pay", "transactions", "out-trade-no", no, "close"]) => close(sim, no),
        ("POST", ["refund", "domestic", "refunds"]) => refund(sim, &asked.json()),
        ("GET", ["refund", "domestic", "refunds", no]) => query_refund(sim, no),
        ("GET", ["certificates"]) => certificates(sim),
        ("GET", ["bill", "tradebill"]) => bill_address(sim, asked),
        // The file itself is not signed.
        ("GET", ["billdownload", "file"]) => return bill_file(sim, asked),
        _ => error(404, "NO_ROUTE"),
    };
    let keys = sim.keys.lock();
    let key = keys.signing(0, Some(asked.header("wechatpay-serial")));
    reply.headers.extend(courier::signature_headers(&sim.random(), sim.now_s(), &reply.body, key));
    reply
}

fn error(status: u16, code: &str) -> Reply {
    Reply::json(status, &json!({"code": code, "message": "simulated"}))
}

/// Whether the merchant has signed the request.
fn is_signed(sim: &Sim, asked: &Asked) -> bool {
    let Some(fields) = asked.header("authorization").strip_prefix("WECHATPAY2-SHA256-RSA2048 ")
    else {
        return false;
    };
    let field = |name: &str| {
        let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'));
        value.unwrap_or_default().to_owned()
    };
    let (time, nonce) = (field("timestamp"), field("nonce_str"));
    let body = String::from_utf8_lossy(&asked.body);
    let text = format!("{}\n{}\n{time}\n{nonce}\n{body}\n", asked.method, asked.target);
    let is_fresh = time.parse().is_ok_and(|time: i64| (sim.now_s() - time).abs() <= 300);
    let is_known = field("mchid") == MCHID && field("serial_no") == MERCHANT_SERIAL;
    let merchant = &sim.keys.lock().merchant;
    is_fresh && is_known && crypto::fits(merchant, text.as_bytes(), &field("signature"))
}

fn create(sim: &Sim, body: &Value) -> Reply {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let (merchant_no, amount) = (text("out_trade_no"), body["amount"]["total"].as_i64());
    if text("mchid") != MCHID || text("appid") != APPID {
        return error(400, "APPID_MCHID_NOT_MATCH");
    }
    let Some(amount) = amount.filter(|amount| *amount > 0) else {
        return error(400, "PARAM_ERROR");
    };
    let expires: Option<Timestamp> = text("time_expire").parse().ok();
    let sound = (6..=32).contains(&merchant_no.len()) && text("attach").len() <= 128;
    let (true, Some(expires)) = (sound, expires) else { return error(400, "PARAM_ERROR") };
    let mut books = sim.books.lock();
    if let Some(known) = books.orders.get(&merchant_no) {
        return match known {
            known if !known.payments.is_empty() => error(400, "ORDERPAID"),
            known if known.is_closed => error(400, "ORDER_CLOSED"),
            known if known.amount != amount => error(400, "INVALID_REQUEST"),
            known => Reply::json(200, &json!({"code_url": known.pay})),
        };
    }
    let pay = format!("weixin://wxpay/bizpayurl?pr={}", &sim.random()[..12]);
    let order = SimOrder {
        format: Format::WeChat,
        key: merchant_no.clone(),
        merchant_no,
        amount,
        currency: body["amount"]["currency"].as_str().unwrap_or("CNY").to_owned(),
        proof: text("attach"),
        callback_url: text("notify_url"),
        pay: pay.clone(),
        created_s: sim.now_s(),
        expires_s: expires.as_second(),
        is_closed: false,
        payments: Vec::new(),
    };
    books.write(Line::Made(order));
    Reply::json(200, &json!({"code_url": pay}))
}

/// The object of a transaction, as queries and callbacks have it.
pub(super) fn transaction(order: &SimOrder, paid: Option<&SimPayment>) -> Value {
    let state = match paid {
        Some(paid) if paid.returned() > 0 => "REFUND",
        Some(_) => "SUCCESS",
        None if order.is_closed => "CLOSED",
        None => "NOTPAY",
    };
    let mut value = json!({
        "appid": APPID,
        "mchid": MCHID,
        "out_trade_no": order.merchant_no,
        "attach": order.proof,
        "trade_type": "NATIVE",
        "trade_state": state,
        "trade_state_desc": "simulated",
        "amount": {"total": order.amount, "currency": order.currency},
    });
    if let Some(paid) = paid {
        value["transaction_id"] = json!(paid.trade_no);
        value["success_time"] = json!(local(paid.at_s).replace(' ', "T") + "+08:00");
        value["payer"] = json!({"openid": "simulated"});
        value["amount"] = json!({
            "total": paid.amount,
            "payer_total": paid.amount - paid.borne,
            "currency": paid.currency,
            "payer_currency": paid.currency,
        });
        if paid.borne > 0 {
            value["promotion_detail"] = json!([
                {"coupon_id": "1", "type": "NOCASH", "amount": paid.borne, "currency": "CNY"},
            ]);
        }
    }
    value
}

fn query(sim: &Sim, no: &str) -> Reply {
    match sim.books.lock().orders.get(no) {
        Some(order) => Reply::json(200, &transaction(order, order.payments.first())),
        None => error(404, "ORDER_NOT_EXIST"),
    }
}

fn close(sim: &Sim, no: &str) -> Reply {
    let lies = sim.faults.lock().lie_about_close;
    let mut books = sim.books.lock();
    let Some(order) = books.orders.get(no) else { return error(404, "ORDER_NOT_EXIST") };
    if !order.payments.is_empty() {
        return error(400, "ORDERPAID");
    }
    if !order.is_closed && !lies {
        books.write(Line::Closed { key: no.to_owned() });
    }
    Reply { status: 204, headers: Vec::new(), body: Vec::new() }
}

fn refund_object(order: &SimOrder, paid: &SimPayment, back: &SimReturn) -> Value {
    json!({
        "refund_id": back.number,
        "out_refund_no": back.return_no,
        "transaction_id": paid.trade_no,
        "out_trade_no": order.merchant_no,
        "status": back.status,
        "amount": {"total": paid.amount, "refund": back.amount, "currency": paid.currency},
    })
}

fn refund(sim: &Sim, body: &Value) -> Reply {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let (trade_no, return_no) = (text("transaction_id"), text("out_refund_no"));
    let status = sim.faults.lock().refunds.clone().unwrap_or_else(|| "SUCCESS".to_owned());
    let mut books = sim.books.lock();
    let Some((order, paid)) = books.payment(&trade_no) else {
        return error(404, "RESOURCE_NOT_EXISTS");
    };
    if let Some(known) = paid.returns.iter().find(|back| back.return_no == return_no) {
        return Reply::json(200, &refund_object(order, paid, known));
    }
    let amount = body["amount"]["refund"].as_i64().filter(|amount| *amount > 0);
    let Some(amount) = amount.filter(|_| !return_no.is_empty()) else {
        return error(400, "PARAM_ERROR");
    };
    if status == "NOT_ENOUGH" {
        return error(403, "NOT_ENOUGH");
    }
    if amount > paid.amount - paid.returned() {
        return error(400, "INVALID_REQUEST");
    }
    let number = format!("5{}", &sim.random()[..27]);
    let back = SimReturn { number, return_no, amount, at_s: sim.now_s(), status };
    let reply = Reply::json(200, &refund_object(order, paid, &back));
    give_back(&mut books, &trade_no, back);
    reply
}

/// Books a refund, and sends its callback.
pub(super) fn give_back(books: &mut Books, trade_no: &str, back: SimReturn) {
    let (order, paid) = books.payment(trade_no).expect("looked up");
    let (order, at_s) = (order.clone(), back.at_s);
    let mut object = refund_object(&order, paid, &back);
    object["mchid"] = json!(MCHID);
    object["refund_status"] = object["status"].take();
    let event = format!("REFUND.{}", back.status);
    books.write(Line::Returned { trade_no: trade_no.to_owned(), back });
    books.send(&order, &event, object.to_string(), at_s);
}

fn query_refund(sim: &Sim, no: &str) -> Reply {
    let books = sim.books.lock();
    for (order, paid) in books.payments() {
        if let Some(back) = paid.returns.iter().find(|back| back.return_no == no) {
            return Reply::json(200, &refund_object(order, paid, back));
        }
    }
    error(404, "RESOURCE_NOT_EXISTS")
}

fn certificates(sim: &Sim) -> Reply {
    let keys = sim.keys.lock();
    let mut list = Vec::new();
    for key in &keys.platform {
        let Some(certificate) = &key.certificate else { continue };
        let nonce = &sim.random()[..12];
        list.push(json!({
            "serial_no": key.serial,
            "effective_time": "2020-01-01T00:00:00+08:00",
            "expire_time": "2049-12-31T23:59:59+08:00",
            "encrypt_certificate": {
                "algorithm": "AEAD_AES_256_GCM",
                "nonce": nonce,
                "associated_data": "certificate",
                "ciphertext": crypto::seal(&keys.api_v3, nonce, "certificate", certificate),
            },
        }));
    }
    Reply::json(200, &json!({"data": list}))
}

/// `YYYY-MM-DD HH:MM:SS` in the channel's zone.
fn local(second: i64) -> String {
    let time = Timestamp::from_second(second).expect("a time");
    Offset::constant(8).to_datetime(time).to_string().replace('T', " ")
}

fn bill_address(sim: &Sim, asked: &Asked) -> Reply {
    let fault = sim.faults.lock().bill;
    if fault == Some(BillFault::Late) {
        return error(400, "STATEMENT_CREATING");
    }
    let day = asked.field("bill_date").unwrap_or_default();
    let Some(bill) = bill(sim, &day, fault) else { return error(400, "NO_STATEMENT_EXIST") };
    let url = format!("{}/v3/billdownload/file?token={day}", sim.base);
    let digest = match fault {
        Some(BillFault::Digest) => crypto::digest(b"another file"),
        _ => crypto::digest(bill.as_bytes()),
    };
    Reply::json(200, &json!({"hash_type": "SHA1", "hash_value": digest, "download_url": url}))
}

fn bill_file(sim: &Sim, asked: &Asked) -> Reply {
    let fault = sim.faults.lock().bill;
    let bill = bill(sim, &asked.field("token").unwrap_or_default(), fault).unwrap_or_default();
    let mut body = bill.into_bytes();
    if fault == Some(BillFault::Cut) {
        body.truncate(body.len() / 2);
    }
    Reply { status: 200, headers: vec![("content-type", "text/plain".to_owned())], body }
}

/// Fen as yuan.
fn yuan(fen: i64) -> String {
    format!("{}.{:02}", fen / 100, fen % 100)
}

/// A line of a bill: time, number, merchant number, state, fen paid, refund, merchant's refund, fen
/// returned.
type BillRow = (String, String, String, &'static str, i64, String, String, i64);

/// The bill of a day; `None`: it has no trade.
fn bill(sim: &Sim, day: &str, fault: Option<BillFault>) -> Option<String> {
    let mut rows: Vec<BillRow> = Vec::new();
    let books = sim.books.lock();
    for (order, paid) in books.payments().filter(|(order, _)| order.format == Format::WeChat) {
        let (time, none) = (local(paid.at_s), || "0".to_owned());
        let (trade_no, no) = (paid.trade_no.clone(), order.merchant_no.clone());
        let arrives = paid.amount - paid.borne;
        rows.push((time, trade_no.clone(), no.clone(), "SUCCESS", arrives, none(), none(), 0));
        for back in paid.returns.iter().filter(|back| back.status != "CLOSED") {
            let numbers = (back.number.clone(), back.return_no.clone());
            let (time, sum) = (local(back.at_s), back.amount);
            rows.push((time, trade_no.clone(), no.clone(), "REFUND", 0, numbers.0, numbers.1, sum));
        }
    }
    rows.retain(|row| row.0.starts_with(day));
    if rows.is_empty() {
        return None;
    }
    rows.sort();
    let (fee, foreign) = {
        let faults = sim.faults.lock();
        (faults.fee, faults.foreign)
    };
    for number in 0..foreign {
        let (trade_no, no) = (format!("43{number:026}"), format!("another-shop-{number}"));
        rows.push((rows[0].0.clone(), trade_no, no, "SUCCESS", 1, "0".into(), "0".into(), 0));
    }
    match fault {
        Some(BillFault::Lose) => drop(rows.remove(0)),
        Some(BillFault::Change) => rows[0].4 += 1,
        Some(BillFault::Empty) => return Some(String::new()),
        Some(BillFault::Add) => {
            let mut other = rows[0].clone();
            (other.1, other.2) = ("4299999".to_owned(), "another-shop-1".to_owned());
            rows.push(other);
        }
        _ => {}
    }
    Some(written(&rows, fee, fault == Some(BillFault::Old)))
}

/// The text of a bill. `old`: of an older merchant.
fn written(rows: &[BillRow], fee: i64, old: bool) -> String {
    let (sum_name, total_name) = if old {
        ("总金额", "总交易额")
    } else {
        ("应结订单金额", "应结订单总金额")
    };
    let more = if old { "" } else { ",订单金额,申请退款金额,费率备注" };
    let mut text = format!(
        "\u{feff}交易时间,公众账号ID,商户号,特约商户号,设备号,微信订单号,商户订单号,用户标识,交易类型,\
         交易状态,付款银行,货币种类,{sum_name},代金券金额,微信退款单号,商户退款单号,退款金额,\
         充值券退款金额,退款类型,退款状态,商品名称,商户数据包,手续费,费率{more}\r\n"
    );
    let (mut paid, mut returned, mut fees) = (0, 0, 0);
    for (time, trade_no, no, state, amount, number, return_no, sum) in rows {
        paid += amount;
        returned += sum;
        let fee = if *state == "SUCCESS" { fee } else { 0 };
        fees += fee;
        let (amount, sum, fee) = (yuan(*amount), yuan(*sum), yuan(fee));
        let more = if old { String::new() } else { format!(",`{amount},`{sum},`") };
        text += &format!(
            "`{time},`{APPID},`{MCHID},`0,`,`{trade_no},`{no},`simulated,`NATIVE,`{state},`OTHERS,`CNY,\
             `{amount},`0.00,`{number},`{return_no},`{sum},`0.00,`,`,`a \"quoted\", recharge,`,`{fee}000,\
             `0.60%{more}\r\n"
        );
    }
    let more = if old { "" } else { ",订单总金额,申请退款总金额" };
    text += &format!("总交易单数,{total_name},退款总金额,充值券退款总金额,手续费总金额{more}\r\n");
    let (count, paid, returned, fees) = (rows.len(), yuan(paid), yuan(returned), yuan(fees));
    let more = if old { String::new() } else { format!(",`{paid},`{returned}") };
    text += &format!("`{count},`{paid},`{returned},`0.00,`{fees}000{more}\r\n");
    text
}
