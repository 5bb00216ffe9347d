use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::harness::{SetAtEnd, Way, crowd, exchange, soak_connections};

/// Goal: a callback that is not signed by its channel, or not for us, is refused without a word of
/// why, and leaves no row. Method: each forged part over the real listener, both formats; then the
/// right one counts.
#[test]
fn rch_010_over_http_a_forged_callback_leaves_no_row() {
    let shop = Shop::open();
    let (no, stale) = (stranger(1), now_s() - 301);
    let right = shop.wechat(&transaction("4200001", &no));
    let body = Letter { body: format!("{} ", right.body), ..right.clone() };
    let wechat = [
        ("signature", 401, body),
        ("time", 401, shop.wechat_at(&transaction("4200001", &no), stale)),
        ("serial", 401, right.with("wechatpay-serial", "7FFF")),
        ("signature", 401, right.with("wechatpay-nonce", "another")),
        ("signature", 401, right.with("wechatpay-signature", "WECHATPAY/SIGNTEST/AAAA")),
        ("header", 401, right.doubled("wechatpay-serial")),
        ("encoding", 415, right.with("content-encoding", "gzip")),
    ];
    let secret = shop.file("card_webhook_secret");
    let event = succeeded("pi_1", &no);
    let signed = shop.card(&event);
    let header = signed.head.last().expect("a signature").1.clone();
    let card = [
        ("signature", 401, signed_by("whsec_stranger", now_s(), &event)),
        ("time", 401, signed_by(&secret, now_s() + 330, &event)),
        ("header", 401, signed.with("stripe-signature", &format!("{header},t=1"))),
        ("header", 401, signed.with("stripe-signature", header.split(',').next().expect("t"))),
        ("header", 401, signed.doubled("stripe-signature")),
        (
            "signature",
            401,
            Letter { body: signed.body.replace("10000", "99999"), ..signed.clone() },
        ),
    ];
    let of = |channel, path, cases: &[(&str, u16, Letter)]| {
        for (reason, status, letter) in cases {
            let before = shop.counted(channel, reason);
            let reply = shop.post(path, letter);
            assert_eq!(reply.status, *status, "{channel} {reason}: {reply:?}");
            assert_eq!(reply.json()["message"], json!("not accepted"), "no word of why");
            assert_eq!(shop.counted(channel, reason), before + 1, "{channel} {reason}");
        }
    };
    of("wechat", WECHAT, &wechat);
    of("card", CARD, &card);
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
    assert_eq!(shop.post(WECHAT, &right).status, 404);
    assert_eq!(shop.post(CARD, &signed).status, 404);
    assert_eq!(shop.rows()[1], "2");
    // No payer, body or key is in a line.
    let said = shop.server.said();
    assert!(said.contains("reason=\"serial\"") && !said.contains("ciphertext"), "{said}");
    assert!(!said.contains(secret.as_str()), "{said}");
}

/// Goal: a message for another merchant, application or mode is refused, though rightly signed.
#[test]
fn rch_012_over_http_a_callback_for_another_is_refused() {
    let shop = Shop::open();
    let no = stranger(1);
    let changed = |field: &str, value: &str| {
        let mut value_of = transaction("4200001", &no);
        value_of[field] = json!(value);
        shop.wechat(&value_of)
    };
    assert_eq!(shop.post(WECHAT, &changed("mchid", "1900000002")).status, 401);
    assert_eq!(shop.post(WECHAT, &changed("appid", "wx0000000000000002")).status, 401);
    let (mut live, mut account) = (succeeded("pi_1", &no), succeeded("pi_1", &no));
    live["livemode"] = json!(true);
    account["account"] = json!("acct_1");
    assert_eq!(shop.post(CARD, &shop.card(&live)).status, 401);
    assert_eq!(shop.post(CARD, &shop.card(&account)).status, 401);
    // A message for one channel is none of the other.
    let of_card = shop.card(&succeeded("pi_1", &no));
    assert_eq!(shop.post(WECHAT, &of_card).status, 401);
    for (channel, reason) in
        [("wechat", "merchant"), ("wechat", "application"), ("card", "mode"), ("card", "merchant")]
    {
        assert_eq!(shop.counted(channel, reason), 1, "{channel} {reason}");
    }
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
}

/// Goal: noise at the listener harms no user and leaves no row. Method: a crowd sends broken, half
/// and rightly signed senseless messages while a user moves money; in `make soak FAMILY=recharges`
/// 10,000 of them.
#[test]
fn rch_040_noise_harms_no_user_and_leaves_no_row() {
    let shop = Shop::open();
    shop.server.deposit(USER, "USDT", "100");
    let senseless = [
        json!({}),
        json!([1]),
        json!({"type": "payment_intent.succeeded", "livemode": false, "data": {"object": 1}}),
        {
            let mut odd = succeeded("pi_1", &stranger(1));
            odd["data"]["object"]["amount_received"] = json!(1.5);
            odd
        },
        {
            let mut odd = succeeded("pi_1", &stranger(1));
            odd["data"]["object"]["amount_received"] = json!(-1);
            odd
        },
    ];
    let address = shop.callbacks();
    let each = if soak_connections().is_some() { 2_500 } else { 25 };
    let statuses: Vec<u16> = crowd(4, |index| {
        let mut statuses = Vec::new();
        for round in 0..each {
            let number = index * each + round;
            let reply = match number % 5 {
                0 => shop.post(CARD, &shop.card(&senseless[round % senseless.len()])),
                1 => shop.post(WECHAT, &Letter { head: vec![("content-type", "application/json".into())], body: "{".into() }),
                2 => shop.post(CARD, &signed_by("x", now_s(), &json!({"n": number}))),
                3 => exchange(address, b"rubbish\r\n\r\n").expect("an answer"),
                _ => {
                    let half = format!("POST {CARD} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{{\r\n\r\nGET / HTTP/1.1\r\n");
                    exchange(address, half.as_bytes()).expect("an answer")
                }
            };
            statuses.push(reply.status);
            if round % (each / 3) == 0 {
                shop.server.transfer_committed(USER, Way::ToSpot, "1");
            }
        }
        statuses
    })
    .concat();
    assert!(statuses.iter().all(|status| (400..500).contains(status)), "{statuses:?}");
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
    assert_eq!(shop.server.ready(), 200);
}

/// Goal: slow, half, huge and silent connections harm no user, no callback, and leave nothing
/// open. Method: 300 of seven kinds, in `make soak FAMILY=recharges` as many as it says, while a
/// user moves money and a channel calls back; afterwards the process has as many files open as
/// before.
#[test]
fn rch_040_broken_connections_harm_no_callback_and_leave_nothing_open() {
    let shop = Shop::open();
    shop.server.deposit(USER, "USDT", "100");
    let address = shop.callbacks();
    let files =
        || fs::read_dir(format!("/proc/{}/fd", shop.server.pid())).expect("a process").count();
    let callback = || {
        let right = shop.card(&succeeded("pi_1", "shop-1"));
        // A place may be taken for a moment.
        eventually("a right callback", || {
            let reply = shop.try_post(CARD, &right).ok()?;
            (reply.status == 204).then_some(())
        });
    };
    callback();
    shop.server.transfer_committed(USER, Way::ToSpot, "1");
    let before = files();
    let head = format!("POST {CARD} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let steady = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                callback();
                shop.server.transfer_committed(USER, Way::ToSpot, "0.01");
            }
        });
        let end = SetAtEnd(&done);
        let mut kept = Vec::new();
        for number in 0..soak_connections().unwrap_or(300) {
            let mut stream = TcpStream::connect(address).expect("connected");
            let sent = match number % 7 {
                0 => stream.write_all(&head.as_bytes()[..40]),
                1 => stream.write_all(format!("{head}x-noise: {}", "x".repeat(20_000)).as_bytes()),
                2 => stream
                    .write_all(format!("{head}Content-Length: 9999999999\r\n\r\n{{").as_bytes()),
                3 => stream
                    .write_all(format!("{head}Content-Length: 100\r\n\r\n{{\"id\"").as_bytes()),
                4 => stream.write_all(&[0xff; 5_000]),
                5 => stream.shutdown(Shutdown::Write),
                _ => Ok(()),
            };
            // The server may close it at any time.
            drop(sent);
            kept.push(stream);
            if kept.len() > 200 {
                kept.drain(..150);
            }
        }
        drop(end);
        steady.join().expect("callbacks and transfers");
    });
    // Meanwhile the log may have a further segment, and the pool a further connection.
    eventually("as many open files as before", || (files() <= before + 10).then_some(()));
    assert!(!shop.server.said().contains("panicked"), "{}", shop.server.said());
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
}
