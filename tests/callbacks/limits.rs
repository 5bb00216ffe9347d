use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use super::*;
use crate::harness::{Certificate, assert_refused, curl};

/// Goal: the listener has one route, and each limit has its answer. Method: other paths and
/// methods, bodies and heads over their bounds, a body that stops.
#[test]
fn the_listener_has_one_route_and_its_limits() {
    let shop = Shop::at(site().with("UBSCORE__HTTP__BODY_READ_TIMEOUT_MS", 300));
    let address = shop.callbacks();
    let letter = shop.card(&succeeded("pi_1", ""));
    for path in [
        "/",
        "/healthz",
        "/callbacks/v1/",
        "/callbacks/v1/paypal",
        "/callbacks/v2/card",
        "/api/v1/balances",
        "/callbacks/v1/card/x",
    ] {
        assert_refused(&shop.post(path, &letter), 404, "NOT_FOUND");
    }
    for method in ["GET", "PUT", "DELETE"] {
        let reply = send_text(address, method, CARD, &letter.headers(), "").expect("an answer");
        assert_refused(&reply, 405, "METHOD_NOT_ALLOWED");
        assert_eq!(reply.header("allow"), Some("POST"));
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        assert_refused(
            &shop.post(CARD, &letter.with("content-type", kind)),
            415,
            "INVALID_REQUEST",
        );
    }
    let large = Letter { body: "x".repeat(65_537), ..letter.clone() };
    assert_refused(&shop.post(CARD, &large), 413, "INVALID_REQUEST");
    let fits = Letter { body: "x".repeat(65_536), ..letter.clone() };
    assert_eq!(shop.post(CARD, &fits).status, 401, "it is read and not believed");
    let long = letter.with("x-noise", &"x".repeat(20_000));
    assert_eq!(shop.try_post(CARD, &long).expect("an answer").status, 431);
    let mut slow = TcpStream::connect(address).expect("connected");
    let begun = format!(
        "POST {CARD} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: 10\r\n\r\nhalf"
    );
    slow.write_all(begun.as_bytes()).expect("sent");
    let mut said = String::new();
    slow.read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
    assert_eq!(shop.rows(), ["0", "0", "0", "0"]);
    // The other listeners have no such route.
    for other in [shop.server.http, shop.server.ops] {
        let reply = send_text(other, "POST", CARD, &letter.headers(), &letter.body);
        assert_eq!(reply.expect("an answer").status, 404);
    }
}

/// Goal: a callback that waits for PostgreSQL is answered in time, and its work goes on; beyond
/// `in_flight_max` the next one is refused. Method: a lock on the table of payments.
#[test]
fn a_callback_that_waits_is_answered_503_and_its_work_goes_on() {
    let shop = Shop::at(site().with("UBSCORE__CALLBACKS__IN_FLIGHT_MAX", 1));
    let held = shop.site.session();
    held.sql("BEGIN; LOCK TABLE channel_payments IN ACCESS EXCLUSIVE MODE");
    let letter = shop.card(&succeeded("pi_1", &stranger(1)));
    let other = shop.card(&succeeded("pi_2", ""));
    thread::scope(|scope| {
        let first = scope.spawn(|| shop.post(CARD, &letter));
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                       AND relation = 'channel_payments'::regclass";
        eventually("a wait", || (shop.site.sql_value(waiting) != "0").then_some(()));
        eventually("a full house", || {
            let reply = shop.post(CARD, &other);
            assert!([204, 503].contains(&reply.status), "{reply:?}");
            (shop.counted("card", "busy") > 0).then_some(())
        });
        let first = first.join().expect("no panic");
        assert_eq!(first.status, 503, "{first:?}");
        assert_eq!(first.header("retry-after"), Some("1"));
    });
    held.sql("ROLLBACK");
    eventually("the work of the first", || (shop.rows()[1] == "1").then_some(()));
    let again = eventually("a place", || {
        Some(shop.post(CARD, &letter)).filter(|reply| reply.status != 503)
    });
    assert_eq!(again.status, 404, "{again:?}");
    assert_eq!(shop.rows()[1], "1");
}

/// Goal: only the networks of `callbacks.allow` reach the listener.
#[test]
fn another_network_is_closed_without_an_answer() {
    let shop = Shop::at(site().with("UBSCORE__CALLBACKS__ALLOW", "192.0.2.0/24"));
    let letter = shop.card(&succeeded("pi_1", ""));
    assert!(shop.try_post(CARD, &letter).is_err(), "no answer");
    drop(shop);
    let shop = Shop::at(site().with("UBSCORE__CALLBACKS__ALLOW", "192.0.2.0/24,127.0.0.1"));
    assert_eq!(shop.post(CARD, &shop.card(&succeeded("pi_1", ""))).status, 204);
}

/// Goal: the listener speaks TLS alone where it has a certificate. Method: the signed callback by
/// curl, which checks the certificate; then without TLS.
#[test]
fn the_listener_speaks_tls_with_a_certificate() {
    let site = site();
    let certificate = Certificate::issued(&site);
    let shop = Shop::at(
        site.with("UBSCORE__CALLBACKS__TLS_CERTIFICATE_FILE", certificate.certificate.display())
            .with("UBSCORE__CALLBACKS__TLS_KEY_FILE", certificate.key.display()),
    );
    let letter = shop.card(&succeeded("pi_1", ""));
    let url = format!("https://{}{CARD}", shop.callbacks());
    let head: Vec<String> =
        letter.head.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut arguments = vec!["-w", "%{http_code}", "--data-binary", &letter.body, &url];
    for header in &head {
        arguments.extend(["-H", header]);
    }
    assert_eq!(curl(&certificate.issuer, &arguments), (0, "204".to_owned()));
    assert!(shop.try_post(CARD, &letter).is_err(), "plain HTTP has no answer");
}
