use super::*;

/// Goal: each broken law of promotions is named, and whole rows have no finding. Method: each law
/// is broken by SQL behind the guards.
#[test]
fn rch_038_promotions_that_contradict_their_orders_are_named() {
    let desk = Recharging::on(Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 1_000));
    let server = desk.start();
    funded(&server, &terms(), "100");
    let paid = server.recharge_paying(USER, &promoted("40", "wechat", "paid"));
    desk.sim.pay(&paid);
    server.recharge_is(USER, &paid, "PAID");
    server.recharge_paying(USER, &promoted("40", "wechat", "open"));
    let back = json!({"reason": "a test", "idem_key": "back", "amount": "10"});
    let path = format!("/admin/v1/recharges/{paid}/refund");
    assert_eq!(server.admin("POST", &path, &back).status, 200);
    eventually("the refund", || {
        let done = "SELECT count(*) FROM recharge_returns WHERE state = 40";
        (desk.site.sql_value(done) == "1").then_some(())
    });
    assert_whole(&desk);
    let breaks = |change: &str, subject: &str| {
        let session = desk.site.session();
        session.sql("BEGIN; SET LOCAL session_replication_role = replica");
        session.sql(change);
        let rows = session.sql(
            "SELECT subject FROM audit_recharges('epoch', 'infinity') \
             UNION ALL SELECT subject FROM audit_promotions('epoch', 'infinity')",
        );
        assert!(rows.iter().any(|row| row[0].starts_with(subject)), "{change}: {rows:?}");
        session.sql("ROLLBACK");
    };
    breaks("UPDATE promotions_tb SET available = available + 1", "promotion spring");
    breaks("DELETE FROM recharge_movements WHERE kind = 15", "promotion spring");
    breaks("UPDATE recharges_tb SET bonus_state = NULL WHERE bonus_state = 1", "promotion spring");
    breaks("UPDATE recharges_tb SET bonus = bonus + 1 WHERE bonus_state = 1", "promotion spring");
    breaks("UPDATE recharges_tb SET bonus_state = 1 WHERE bonus_state = 3", "recharge ");
    breaks("UPDATE recharge_movements SET amount = 1 WHERE kind = 13", "recharge/");
    breaks("UPDATE recharge_movements SET debit = 'promotion/x' WHERE kind = 13", "recharge ");
    breaks("DELETE FROM recharge_movements WHERE kind = 13", "recharge/");
    breaks("DELETE FROM external_operations WHERE idem_key LIKE '%/bonus'", "re");
    breaks("UPDATE recharge_returns SET bonus = bonus + 1", "return/");
    breaks("DELETE FROM recharge_movements WHERE kind = 14", "return/");
    let session = desk.site.session();
    for change in [
        "DELETE FROM promotions_tb",
        "UPDATE promotions_tb SET min_amount = 1",
        "UPDATE promotions_tb SET basis_points = 1",
        "UPDATE promotions_tb SET bonus_max = 1",
        "UPDATE promotions_tb SET asset_id = 1",
        "UPDATE recharges_tb SET bonus_state = 3, version = version + 1 WHERE state = 10",
        "UPDATE recharges_tb SET bonus_state = 2, version = version + 1 WHERE state = 10",
        "UPDATE recharges_tb SET bonus_state = NULL, version = version + 1",
        "UPDATE recharges_tb SET bonus_state = 1, version = version + 1 WHERE state = 40",
    ] {
        assert_eq!(session.sql_refused(change), "UB003", "{change}");
    }
    let overdrawn = "UPDATE promotions_tb SET available = -1";
    assert_eq!(session.sql_refused(overdrawn), "23514");
    drop(session);
    // Guards do not stop the owner of the tables; the next round of the audit halts.
    let change =
        "UPDATE promotions_tb SET available = available + 1, updated_at = clock_timestamp()";
    desk.site.sql(change);
    eventually("the halt", || {
        let halted = desk.site.sql("SELECT halt_reason FROM engine_state WHERE halted");
        halted.first().filter(|row| row[0].contains("promotion spring")).map(|_| ())
    });
}
