//! The simulator's side of Stripe: intents, refunds, balance transactions.

use serde_json::{Value, json};

use super::Sim;
use super::books::{Format, Line, SimOrder, SimPayment, SimReturn};
use super::door::{Asked, Reply};
use super::fault::BillFault;

/// Answers one request.
pub(super) fn answer(sim: &Sim, asked: &Asked) -> Reply {
    let known = format!("Bearer {}", sim.keys.lock().card_key);
    if asked.header("authorization") != known {
        return error(401, "invalid_request_error", "api_key_invalid", None);
    }
    let key = asked.header("idempotency-key").to_owned();
    if let Some((status, body)) = sim.books.lock().stored.get(&key).filter(|_| !key.is_empty()) {
        let body = body.clone().into_bytes();
        let headers = vec![("idempotent-replayed", "true".to_owned())];
        return Reply { status: *status, headers, body };
    }
    let parts = asked.parts();
    let reply = match (asked.method.as_str(), &parts[1..]) {
        ("POST", ["payment_intents"]) => create(sim, asked),
        ("GET", ["payment_intents", "search"]) => search(sim, asked),
        ("GET", ["payment_intents", id]) => match sim.books.lock().orders.get(*id) {
            Some(order) => Reply::json(200, &intent(order, true)),
            None => missing(),
        },
        ("POST", ["payment_intents", id, "cancel"]) => cancel(sim, id),
        ("POST", ["refunds"]) => refund(sim, asked),
        ("GET", ["refunds"]) => refunds(sim, asked),
        ("GET", ["balance_transactions"]) => balance(sim, asked),
        _ => missing(),
    };
    if !key.is_empty() {
        store(sim, key, reply.status, &reply.body);
    }
    reply
}

/// Keeps a 500 under the request's idempotency key, as the channel does.
pub(super) fn store_failure(sim: &Sim, asked: &Asked) {
    let key = asked.header("idempotency-key").to_owned();
    if !key.is_empty() {
        store(sim, key, 500, br#"{"error":{"type":"api_error"}}"#);
    }
}

fn store(sim: &Sim, key: String, status: u16, body: &[u8]) {
    let body = String::from_utf8_lossy(body).into_owned();
    sim.books.lock().write(Line::Stored { key, status, body });
}

fn error(status: u16, kind: &str, code: &str, about: Option<Value>) -> Reply {
    let mut body = json!({"error": {"type": kind, "code": code, "message": "simulated"}});
    if let Some(intent) = about {
        body["error"]["payment_intent"] = intent;
    }
    Reply::json(status, &body)
}

fn missing() -> Reply {
    error(404, "invalid_request_error", "resource_missing", None)
}

fn create(sim: &Sim, asked: &Asked) -> Reply {
    let field = |name: &str| asked.field(name).unwrap_or_default();
    let amount: i64 = field("amount").parse().unwrap_or_default();
    if amount <= 0 {
        return error(400, "invalid_request_error", "parameter_invalid_integer", None);
    }
    let random = sim.random();
    let key = format!("pi_{}", &random[..24]);
    let order = SimOrder {
        format: Format::Card,
        pay: format!("{key}_secret_{}", &random[24..]),
        key,
        merchant_no: field("metadata[ubscore_order]"),
        amount,
        currency: field("currency"),
        proof: field("metadata[ubscore]"),
        callback_url: String::new(),
        created_s: sim.now_s(),
        expires_s: 0,
        is_closed: false,
        payments: Vec::new(),
    };
    let reply = Reply::json(200, &intent(&order, false));
    sim.books.lock().write(Line::Made(order));
    reply
}

/// The object of an intent. `expanded`: with its charge.
pub(super) fn intent(order: &SimOrder, expanded: bool) -> Value {
    let paid = order.payments.first();
    let status = match paid {
        Some(_) => "succeeded",
        None if order.is_closed => "canceled",
        None => "requires_payment_method",
    };
    let charge = paid.map(|paid| match expanded {
        true => charge(order, paid),
        false => json!(charge_id(paid)),
    });
    json!({
        "id": order.key,
        "object": "payment_intent",
        "amount": order.amount,
        "amount_received": paid.map_or(0, |paid| paid.amount),
        "currency": paid.map_or(&order.currency, |paid| &paid.currency).to_lowercase(),
        "client_secret": order.pay,
        "created": order.created_s,
        "latest_charge": charge,
        "livemode": false,
        "metadata": metadata(order),
        "status": status,
    })
}

fn metadata(order: &SimOrder) -> Value {
    if order.merchant_no.is_empty() {
        return json!({});
    }
    json!({"ubscore_order": order.merchant_no, "ubscore": order.proof})
}

fn charge_id(paid: &SimPayment) -> String {
    paid.trade_no.replacen("pi_", "ch_", 1)
}

/// The object of a charge.
pub(super) fn charge(order: &SimOrder, paid: &SimPayment) -> Value {
    let refunds = paid.returns.iter().filter(|back| back.status == "succeeded");
    json!({
        "id": charge_id(paid),
        "object": "charge",
        "amount": paid.amount,
        "amount_refunded": refunds.map(|back| back.amount).sum::<i64>(),
        "currency": paid.currency.to_lowercase(),
        "created": paid.at_s,
        "metadata": metadata(order),
        "payment_intent": paid.trade_no,
    })
}

fn search(sim: &Sim, asked: &Asked) -> Reply {
    let query = asked.field("query").unwrap_or_default();
    let wanted = query.strip_prefix("metadata['ubscore_order']:'");
    let Some(no) = wanted.and_then(|rest| rest.strip_suffix('\'')) else {
        return error(400, "invalid_request_error", "parameter_invalid", None);
    };
    let books = sim.books.lock();
    let named = |order: &&SimOrder| order.format == Format::Card && order.merchant_no == no;
    let found = books.orders.values().filter(named).map(|order| intent(order, true));
    let found: Vec<Value> = found.collect();
    Reply::json(200, &json!({"object": "search_result", "data": found, "has_more": false}))
}

fn cancel(sim: &Sim, id: &str) -> Reply {
    let lies = sim.faults.lock().lie_about_close;
    let mut books = sim.books.lock();
    let Some(order) = books.orders.get(id).cloned() else { return missing() };
    if !order.payments.is_empty() || order.is_closed {
        let about = Some(intent(&order, false));
        let code = "payment_intent_unexpected_state";
        return error(400, "invalid_request_error", code, about);
    }
    if !lies {
        books.write(Line::Closed { key: id.to_owned() });
    }
    Reply::json(200, &intent(&SimOrder { is_closed: true, ..order }, false))
}

fn refund_object(paid: &SimPayment, back: &SimReturn) -> Value {
    let metadata = if back.return_no.is_empty() {
        json!({})
    } else {
        json!({"ubscore_return": back.return_no})
    };
    json!({
        "id": back.number,
        "object": "refund",
        "amount": back.amount,
        "currency": paid.currency.to_lowercase(),
        "charge": charge_id(paid),
        "payment_intent": paid.trade_no,
        "metadata": metadata,
        "status": if back.status == "UNDONE" { "failed" } else { &back.status },
    })
}

fn refund(sim: &Sim, asked: &Asked) -> Reply {
    let field = |name: &str| asked.field(name).unwrap_or_default();
    let status = sim.faults.lock().refunds.clone().unwrap_or_else(|| "succeeded".to_owned());
    let mut books = sim.books.lock();
    let trade_no = field("payment_intent");
    let Some((order, paid)) = books.payment(&trade_no) else { return missing() };
    let amount: i64 = field("amount").parse().unwrap_or_default();
    if status == "NOT_ENOUGH" {
        return error(400, "invalid_request_error", "balance_insufficient", None);
    }
    let left = paid.amount - paid.returns.iter().map(|back| back.amount).sum::<i64>();
    if amount <= 0 || amount > left {
        return error(400, "invalid_request_error", "charge_already_refunded", None);
    }
    let return_no = field("metadata[ubscore_return]");
    let (number, at_s) = (format!("re_{}", &sim.random()[..24]), sim.now_s());
    let back = SimReturn { number, return_no, amount, at_s, status };
    let reply = Reply::json(200, &refund_object(paid, &back));
    let order = order.clone();
    books.write(Line::Returned { trade_no: trade_no.clone(), back });
    let object = charge(&order, books.payment(&trade_no).expect("looked up").1).to_string();
    books.send(&order, "charge.refunded", object, at_s);
    reply
}

fn refunds(sim: &Sim, asked: &Asked) -> Reply {
    let books = sim.books.lock();
    let trade_no = asked.field("payment_intent").unwrap_or_default();
    let Some((_, paid)) = books.payment(&trade_no) else { return missing() };
    let is_refund = |back: &&SimReturn| back.number.starts_with("re_");
    let list = paid.returns.iter().filter(is_refund).map(|back| refund_object(paid, back));
    let list: Vec<Value> = list.collect();
    Reply::json(200, &json!({"object": "list", "data": list, "has_more": false}))
}

/// The object of a dispute.
pub(super) fn dispute(paid: &SimPayment, back: &SimReturn) -> Value {
    json!({
        "id": back.number,
        "object": "dispute",
        "amount": back.amount,
        "currency": paid.currency.to_lowercase(),
        "charge": charge_id(paid),
        "payment_intent": paid.trade_no,
        "metadata": {},
    })
}

/// The balance transactions between two times, page by page, the newest first.
fn balance(sim: &Sim, asked: &Asked) -> Reply {
    let number = |name: &str| asked.field(name).and_then(|text| text.parse::<i64>().ok());
    let (from, until) = (number("created[gte]"), number("created[lt]"));
    let (from, until) = (from.unwrap_or_default(), until.unwrap_or(i64::MAX));
    let (fault, fee) = {
        let faults = sim.faults.lock();
        (faults.bill, faults.fee)
    };
    let books = sim.books.lock();
    let mut lines: Vec<(i64, Value)> = Vec::new();
    let mut add = |at_s: i64, kind: (&str, &str), amount: i64, source: Value| {
        let id = source["id"].as_str().unwrap_or_default();
        let (kind, category) = kind;
        let line = json!({
            "id": format!("txn_{category}_{id}"),
            "object": "balance_transaction",
            "amount": amount,
            "currency": source["currency"],
            "created": at_s,
            "fee": if category == "charge" { fee } else { 0 },
            "reporting_category": category,
            "source": source,
            "type": kind,
        });
        lines.push((at_s, line));
    };
    for (order, paid) in books.payments().filter(|(order, _)| order.format == Format::Card) {
        add(paid.at_s, ("charge", "charge"), paid.amount, charge(order, paid));
        for back in &paid.returns {
            let (at_s, sum) = (back.at_s, back.amount);
            match back.status.as_str() {
                "TAKEN" => add(at_s, ("adjustment", "dispute"), -sum, dispute(paid, back)),
                "GIVEN_BACK" => {
                    add(at_s, ("adjustment", "dispute"), -sum, dispute(paid, back));
                    let again = ("adjustment", "dispute_reversal");
                    add(at_s, again, sum, dispute(paid, back));
                }
                "failed" | "canceled" => {}
                "UNDONE" => {
                    let object = refund_object(paid, back);
                    add(at_s, ("refund", "refund"), -sum, object.clone());
                    add(at_s, ("refund_failure", "refund_failure"), sum, object);
                }
                _ => add(at_s, ("refund", "refund"), -sum, refund_object(paid, back)),
            }
        }
    }
    lines.retain(|(at_s, _)| (from..until).contains(at_s));
    lines.sort_by_key(|(at_s, line)| (-at_s, line["id"].to_string()));
    match fault {
        Some(BillFault::Late | BillFault::Empty) => lines.clear(),
        Some(BillFault::Add) if !lines.is_empty() => {
            let mut other = lines[0].clone();
            other.1["id"] = json!("txn_charge_ch_other");
            other.1["source"]["id"] = json!("ch_other");
            other.1["source"]["payment_intent"] = json!("pi_other");
            other.1["source"]["metadata"] = json!({});
            lines.push(other);
        }
        Some(BillFault::Lose) if !lines.is_empty() => drop(lines.remove(0)),
        Some(BillFault::Change) if !lines.is_empty() => {
            let amount = lines[0].1["source"]["amount"].as_i64().unwrap_or_default();
            lines[0].1["source"]["amount"] = json!(amount + 1);
        }
        _ => {}
    }
    let after = asked.field("starting_after");
    let place = |id: &String| lines.iter().position(|(_, line)| line["id"] == id.as_str());
    let first = after.as_ref().and_then(place).map_or(0, |place| place + 1);
    let limit = number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(10);
    let page: Vec<&Value> = lines.iter().skip(first).take(limit).map(|(_, line)| line).collect();
    let has_more = first + page.len() < lines.len();
    Reply::json(200, &json!({"object": "list", "data": page, "has_more": has_more}))
}
