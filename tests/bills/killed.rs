use super::*;

use std::os::unix::process::ExitStatusExt;

use ubscore::crash::BILL_POINTS;

use crate::harness::COIN;

/// Goal: a death behind a fetch, and one behind a repair, credit each payment of the bill once,
/// without help. Method: each point at its first and its second visit; two payments, on
/// two days.
#[test]
fn rch_039_a_kill_amid_a_bill_credits_once() {
    let mut desk = patient(Recharging::new());
    let mut paid = 0;
    for (turn, point) in BILL_POINTS.iter().enumerate() {
        for (visit, channel) in [(1, "wechat"), (2, "card")] {
            let books = Billing { server: desk.start(), desk };
            // Next to the days of the channel's earlier bills.
            let ago = 4 + 2 * i64::try_from(turn).expect("few");
            let days = [day(ago + 1), day(ago)];
            let orders =
                days.map(|day| books.paid(channel, &format!("{point}-{channel}-{day}"), day));
            paid += 2;
            let Billing { server, desk: kept } = books;
            server.kill();
            kept.site.wait_for_disconnected();
            // The last one lets the day before it be clean.
            for (place, day) in [days[0], days[1], day(ago - 1)].iter().enumerate() {
                kept.site.sql(&format!(
                    "INSERT INTO channel_bills (channel, day, next_at) VALUES \
                     ('{channel}', '{day}', now() - INTERVAL '1 hour' * {}) \
                     ON CONFLICT (channel, day) DO UPDATE SET state = 0, next_at = EXCLUDED.next_at",
                    3 - place
                ));
            }
            let armed = kept.site.clone().with("UBSCORE_CRASH", format!("{point}={visit}"));
            match Server::try_start(armed.command()) {
                Ok(mut server) => {
                    let (status, said) = server.wait();
                    assert_eq!(status.signal(), Some(9), "{point}: {status} {said}");
                }
                Err((status, said)) => assert_eq!(status.signal(), Some(9), "{status}: {said}"),
            }
            kept.site.wait_for_disconnected();
            let fetched = format!(
                "SELECT count(*) FROM channel_bills WHERE channel = '{channel}' \
                    AND run IS NOT NULL AND day IN ('{}', '{}')",
                days[0], days[1]
            );
            if *point == "bill_after_fetch" {
                assert_eq!(kept.site.sql_value(&fetched), visit.to_string());
            }
            let server = kept.start();
            for id in &orders {
                server.recharge_is(USER, id, "PAID");
            }
            let books = Billing { server, desk: kept };
            for day in days {
                books.is_clean(channel, day);
            }
            let movements = "SELECT count(*) FROM recharge_movements WHERE credit LIKE 'user/%'";
            assert_eq!(books.desk.site.sql_value(movements), paid.to_string());
            assert_eq!(books.server.balances(USER)["CNY"].funding, Some(100 * COIN * paid));
            books.is_whole();
            books.server.kill();
            desk = books.desk;
            desk.site.wait_for_disconnected();
        }
    }
}
