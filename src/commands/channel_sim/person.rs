//! The routes that no channel has: a person pays, and a test makes the channel fail.

use serde_json::{Value, json};

use super::books::{Books, Format, Line, SimOrder, SimPayment, SimReturn};
use super::door::{Asked, Reply};
use super::fault::Faults;
use super::{Sim, card, wechat};
use crate::entropy::Entropy;

/// Answers one of these routes.
pub(super) fn answer(sim: &Sim, asked: &Asked) -> Reply {
    let parts = asked.parts();
    match (asked.method.as_str(), &parts[..]) {
        ("POST", ["pay", no]) => pay(sim, no, &asked.json()),
        ("PUT", ["sim", "faults"]) => match serde_json::from_slice::<Faults>(&asked.body) {
            Ok(faults) => {
                *sim.faults.lock() = faults;
                done()
            }
            Err(error) => Reply::json(400, &json!({"error": error.to_string()})),
        },
        ("GET", ["sim", "faults"]) => Reply::json(200, &json!(*sim.faults.lock())),
        ("PUT", ["sim", "card", "callback_url"]) => {
            let url = asked.json()["url"].as_str().unwrap_or_default().to_owned();
            sim.books.lock().write(Line::CardUrl { url });
            done()
        }
        ("POST", ["sim", "keys"]) => {
            let is_public = asked.json()["kind"] == "public_key";
            let mut keys = sim.keys.lock();
            match keys.add(is_public) {
                Ok(()) => {
                    let serial = &keys.signing(0, None).serial;
                    Reply::json(200, &json!({"number": keys.platform.len(), "serial": serial}))
                }
                Err(error) => Reply::json(500, &json!({"error": error.to_string()})),
            }
        }
        ("POST", ["sim", "replay", no]) => replay(sim, no),
        ("POST", ["sim", "event", no]) => event(sim, no, &asked.json()),
        ("POST", ["sim", "refund" | "take", no]) => take(sim, no, parts[1], &asked.json()),
        ("POST", ["sim", "give", number]) => give(sim, number),
        ("POST", ["sim", "refunds", number]) => {
            let status = asked.json()["status"].as_str().unwrap_or_default().to_owned();
            sim.books.lock().write(Line::Turned { number: (*number).to_owned(), status });
            done()
        }
        ("GET", ["sim", "orders", no]) => {
            let books = sim.books.lock();
            Reply::json(200, &json!(named(&books, no).collect::<Vec<_>>()))
        }
        ("GET", ["sim", "parcels"]) => {
            let books = sim.books.lock();
            Reply::json(200, &json!({"open": books.parcels.len(), "sent": books.sent.len()}))
        }
        _ => Reply::json(404, &json!({"error": "no such route"})),
    }
}

fn done() -> Reply {
    Reply::json(200, &json!({}))
}

fn refused(why: &str) -> Reply {
    Reply::json(409, &json!({"error": why}))
}

/// The orders with a merchant number: of cards it may be several intents.
fn named<'a>(books: &'a Books, no: &'a str) -> impl Iterator<Item = &'a SimOrder> {
    books.orders.values().filter(move |order| order.merchant_no == no)
}

/// A person pays: `{"amount"?,"currency"?,"borne"?,"late"?,"times"?,"at_s"?}`. `at_s`: the time of
/// the payment, seconds since 1970.
fn pay(sim: &Sim, no: &str, how: &Value) -> Reply {
    let mut books = sim.books.lock();
    let order = named(&books, no).min_by_key(|order| order.is_closed).cloned();
    let Some(order) = order else { return Reply::json(404, &json!({"error": "no such order"})) };
    let is_over = order.expires_s > 0 && sim.now_s() >= order.expires_s;
    let is_late = how["late"] == true;
    if (order.is_closed || is_over) && !is_late {
        return refused("it cannot be paid any more");
    }
    if !order.payments.is_empty() && how["times"].is_null() {
        return refused("it is paid");
    }
    let mut numbers = Vec::new();
    for _ in 0..how["times"].as_u64().unwrap_or(1) {
        let payment = SimPayment {
            trade_no: String::new(),
            amount: how["amount"].as_i64().unwrap_or(order.amount),
            currency: how["currency"].as_str().unwrap_or(&order.currency).to_owned(),
            borne: how["borne"].as_i64().unwrap_or_default(),
            at_s: how["at_s"].as_i64().unwrap_or_else(|| sim.now_s()),
            returns: Vec::new(),
        };
        numbers.push(match order.format {
            Format::WeChat => pay_wechat(sim, &mut books, &order, payment),
            Format::Card => pay_card(sim, &mut books, &order.key, payment),
        });
    }
    Reply::json(200, &json!({"trade_no": numbers[0], "trade_nos": numbers}))
}

fn pay_wechat(sim: &Sim, books: &mut Books, order: &SimOrder, paid: SimPayment) -> String {
    let number = sim.entropy.lock().u64() % 10_u64.pow(18);
    let trade_no = format!("4200000{number:021}");
    let payment = SimPayment { trade_no: trade_no.clone(), ..paid };
    let (object, at_s) = (wechat::transaction(order, Some(&payment)).to_string(), payment.at_s);
    books.write(Line::Paid { key: order.key.clone(), payment });
    books.send(order, "TRANSACTION.SUCCESS", object, at_s);
    trade_no
}

/// An intent is paid once. A second payment is one of a second intent with the same metadata.
fn pay_card(sim: &Sim, books: &mut Books, key: &str, paid: SimPayment) -> String {
    let mut order = books.orders.get(key).expect("looked up").clone();
    if !order.payments.is_empty() {
        order.key = format!("pi_{}", &sim.random()[..24]);
        order.payments.clear();
        books.write(Line::Made(order.clone()));
    }
    let payment = SimPayment { trade_no: order.key.clone(), ..paid };
    let at_s = payment.at_s;
    books.write(Line::Paid { key: order.key.clone(), payment });
    let order = books.orders.get(&order.key).expect("just paid").clone();
    books.send(&order, "payment_intent.succeeded", card::intent(&order, false).to_string(), at_s);
    order.key
}

/// Every callback of an order once more, signed anew.
fn replay(sim: &Sim, no: &str) -> Reply {
    let mut books = sim.books.lock();
    let parcels: Vec<_> =
        books.sent.iter().filter(|parcel| parcel.merchant_no == no).cloned().collect();
    let count = parcels.len();
    for parcel in parcels {
        let number = books.sent.len() as u64;
        books.write(Line::Sent(super::books::Parcel { number, ..parcel }));
    }
    Reply::json(200, &json!({"sent": count}))
}

/// A callback of another kind about an order: `{"event"}`.
fn event(sim: &Sim, no: &str, how: &Value) -> Reply {
    let mut books = sim.books.lock();
    let Some(order) = named(&books, no).next().cloned() else { return refused("no such order") };
    let object = match order.format {
        Format::WeChat => wechat::transaction(&order, order.payments.first()),
        Format::Card => card::intent(&order, false),
    };
    let event = how["event"].as_str().unwrap_or_default();
    books.send(&order, event, object.to_string(), sim.now_s());
    done()
}

/// A refund behind our back, or a chargeback: `{"amount"?,"at_s"?}`.
fn take(sim: &Sim, no: &str, way: &str, how: &Value) -> Reply {
    let mut books = sim.books.lock();
    let paid = named(&books, no).find_map(|order| Some((order, order.payments.first()?)));
    let Some((order, paid)) = paid else { return refused("it is not paid") };
    let amount = how["amount"].as_i64().unwrap_or(paid.amount - paid.returned());
    let (order, trade_no) = (order.clone(), paid.trade_no.clone());
    let (random, now_s) = (sim.random(), sim.now_s());
    let at_s = how["at_s"].as_i64().unwrap_or(now_s);
    let back = |prefix: &str, status: &str| SimReturn {
        number: format!("{prefix}{}", &random[..24]),
        return_no: String::new(),
        amount,
        at_s,
        status: status.to_owned(),
    };
    let number = match (order.format, way) {
        (Format::WeChat, _) => {
            let back = SimReturn { return_no: format!("shop-{at_s}"), ..back("5", "SUCCESS") };
            let number = back.number.clone();
            wechat::give_back(&mut books, &trade_no, back);
            number
        }
        (Format::Card, "refund") => {
            let back = back("re_", "succeeded");
            let number = back.number.clone();
            books.write(Line::Returned { trade_no: trade_no.clone(), back });
            let paid = books.payment(&trade_no).expect("looked up").1;
            let object = card::charge(&order, paid).to_string();
            books.send(&order, "charge.refunded", object, at_s);
            number
        }
        (Format::Card, _) => {
            let back = back("du_", "TAKEN");
            let number = back.number.clone();
            let object = card::dispute(books.payment(&trade_no).expect("looked up").1, &back);
            books.write(Line::Returned { trade_no, back });
            books.send(&order, "charge.dispute.funds_withdrawn", object.to_string(), at_s);
            number
        }
    };
    Reply::json(200, &json!({"number": number}))
}

/// A chargeback is won.
fn give(sim: &Sim, number: &str) -> Reply {
    let mut books = sim.books.lock();
    let found = books.payments().find_map(|(order, paid)| {
        let back = paid.returns.iter().find(|back| back.number == number)?;
        Some((order.clone(), card::dispute(paid, back).to_string()))
    });
    let Some((order, object)) = found else { return refused("no such chargeback") };
    let status = "GIVEN_BACK".to_owned();
    books.write(Line::Turned { number: number.to_owned(), status });
    books.send(&order, "charge.dispute.funds_reinstated", object, sim.now_s());
    done()
}
