use super::*;

/// It stands in the copy of the database, with a part of its money.
const SPRING: &str = "spring";
/// It is made behind the copy.
const LATE: &str = "late";

fn set(server: &Server, name: &str) {
    let body = json!({
        "reason": "a test", "asset": "CNY", "min_amount": "10", "basis_points": 1_250,
        "bonus_max": "20", "per_user_max": 100, "ends_at": "2200-01-01T00:00:00Z",
    });
    let made = server.admin("PUT", &format!("/admin/v1/promotions/{name}"), &body);
    assert_eq!(made.status, 200, "{made:?}");
}

fn fund(server: &Server, name: &str, amount: &str) {
    let body =
        json!({"reason": "a test", "amount": amount, "idem_key": format!("{name}-{amount}")});
    let put = server.admin("POST", &format!("/admin/v1/promotions/{name}/fund"), &body);
    assert_eq!(put.status, 200, "{put:?}");
}

fn promoted(amount: &str, channel: &str, key: &str, name: &str) -> Value {
    let mut body = recharge(amount, channel, key);
    body["promotion"] = json!(name);
    body
}

/// Available, reserved and given of a promotion.
fn sums(server: &Server, name: &str) -> [String; 3] {
    let reply = server.admin_get(&format!("/admin/v1/promotions/{name}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    ["available", "reserved", "given"].map(|key| text(&reply.json()[key]).to_owned())
}

/// A site as its kill has left it, with its database as it was before.
struct LostBonuses {
    desk: Recharging,
    balances: BTreeMap<String, Balance>,
    /// PAID in the copy, open in it, and behind it; by the promotion that came behind it.
    orders: [String; 4],
    /// Of the first and the third order.
    refunds: [String; 2],
}

fn lost_bonuses() -> LostBonuses {
    let desk = Recharging::new();
    let server = desk.start();
    set(&server, SPRING);
    fund(&server, SPRING, "10");
    let before = paid(&desk, &server, USER, &promoted("40", "wechat", "before", SPRING));
    let open = server.recharge_paying(USER, &promoted("20", "card", "open", SPRING));
    desk.site.wait_for_rest();
    server.stop();
    let restored = desk.site.with_copied_database();
    let server = desk.start();
    fund(&server, SPRING, "20");
    desk.sim.pay(&open);
    server.recharge_is(USER, &open, "PAID");
    let after = paid(&desk, &server, USER, &promoted("80", "wechat", "after", SPRING));
    set(&server, LATE);
    fund(&server, LATE, "100");
    let late = paid(&desk, &server, USER, &promoted("30", "card", "late", LATE));
    let refunds = [(&before, "10"), (&after, "40")].map(|(id, amount)| {
        let reply = refund(&server, id, amount, amount);
        assert_eq!(reply.status, 200, "{reply:?}");
        refund_done(&server, id);
        text(&reply.json()["return_id"]).to_owned()
    });
    desk.site.wait_for_rest();
    let balances = server.balances(USER);
    server.kill();
    let desk = Recharging { site: restored, ..desk };
    LostBonuses { desk, balances, orders: [before, open, after, late], refunds }
}

/// Goal: behind a restore the bonuses of lost and older orders are with their users once, and so
/// are their parts that went with refunds; each promotion has its sum, also one that has lost
/// money that was put in; an order of a promotion that is lost waits for it. Method: orders before
/// and behind a copy of the database, two refunded in part; SIGKILL; repair, plan, recovery, the
/// promotion made again, recovery.
#[test]
fn rch_037_a_lost_bonus_comes_back_once_with_its_promotion() {
    let lost = lost_bonuses();
    let site = &lost.desk.site;
    repaired(site);
    let (code, out, err) = said(&site.verify().output().expect("the binary"));
    assert!(code == 0 && out.contains("RECOVER_NEEDED"), "{code} {out}{err}");
    let ulid = lost.orders[2].trim_start_matches("wrc_").to_owned();
    let lacks =
        format!("bonus 10 of promotion spring, which lacks 7.5: fund/recovered-{ulid} puts");
    let (code, planned, why) = recover(site, &["--plan"]);
    assert_eq!(code, 1, "{planned}{why}");
    assert!(planned.contains(&lacks), "{planned}");
    assert!(planned.contains("promotion late of its bonus 3.75 is not here"), "{planned}");
    let end = "planned orders=1 payments=2 returns=2 left=1\n";
    assert!(planned.ends_with(end), "{planned}{why}");

    let (code, done, why) = recover(site, &APPLY);
    assert_eq!(code, 1, "{done}{why}");
    assert!(done.contains(&lacks) && done.contains("recovered orders=1 "), "{done}");
    assert!(done.ends_with(" returns=2 left=1\n"), "{done}");
    assert_eq!(site.sql_value("SELECT recover_needed FROM engine_state"), "t", "{done}");
    let server = lost.desk.start();
    set(&server, LATE);
    server.stop();
    let (code, done, why) = recover(site, &APPLY);
    assert_eq!(code, 0, "{done}{why}");
    assert!(done.ends_with("recovered orders=1 payments=1 returns=0 left=0\n"), "{done}");
    let (code, done, why) = recover(site, &APPLY);
    assert_eq!((code, &*done), (0, "recovered orders=0 payments=0 returns=0 left=0\n"), "{why}");

    let server = lost.desk.start();
    for id in &lost.orders {
        let order = server.recharge_is(USER, id, "PAID");
        assert_ne!(order["bonus"], json!("0"), "{order}");
    }
    let given = "SELECT count(*) FROM recharges_tb WHERE bonus_state = 3";
    assert_eq!(site.sql_value(given), "4");
    site.wait_for_rest();
    assert_eq!(server.balances(USER), lost.balances);
    assert_eq!(sums(&server, SPRING), ["0", "0", "17.5"]);
    assert_eq!(sums(&server, LATE), ["0", "0", "3.75"]);
    for (id, (refund, bonus)) in
        [&lost.orders[0], &lost.orders[2]].into_iter().zip(lost.refunds.iter().zip(["1.25", "5"]))
    {
        let row = &shown(&server, id)["returns"][0];
        assert_eq!((&row["return_id"], &row["bonus"]), (&json!(refund), &json!(bonus)), "{row}");
    }
    let found = site.sql(
        "SELECT subject, what FROM audit_recharges('epoch', 'infinity') \
         UNION ALL SELECT subject, what FROM audit_promotions('epoch', 'infinity')",
    );
    assert_eq!(found, Vec::<Vec<String>>::new());
    let put = "SELECT count(*) FROM admin_audit WHERE action = 'promotion fund' \
                AND detail LIKE '%recovered-%' AND reason = 'a backup was restored'";
    assert_eq!(site.sql_value(put), "2");
    site.assert_in_order(&server);
    let (code, out, err) = said(&site.verify().output().expect("the binary"));
    assert!(code == 0 && !out.contains("RECOVER_NEEDED"), "{code} {out}{err}");
}
