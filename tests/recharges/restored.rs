use super::*;

/// Goal: a payment that was credited before a restore is not credited again behind it, though its
/// order was over. Method: its row and that of its movement are lost, and a repair has brought the
/// external operation back.
#[test]
fn a_payment_behind_a_restore_is_credited_once() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let wished = desk.recharges.wished(&order, ClosingWish::Expired, "till");
    block_on(wished).expect("wished");
    block_on(desk.recharges.closed(&order)).expect("closed");
    let facts = desk.facts(&order, "4200001");
    let first = desk.told(&facts).payment.expect("recorded");
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    let session = desk.site.session();
    session.sql("BEGIN; SET LOCAL session_replication_role = replica");
    session.sql("DELETE FROM channel_payments; DELETE FROM recharge_movements");
    session.sql("UPDATE recharges_tb SET payments = 0");
    session.sql("COMMIT");
    let again = desk.told(&facts);
    assert_eq!(again.decision, PaymentDecision::Credit { pays: false });
    assert_eq!(again.payment.expect("recorded").id, first.id);
    assert_eq!(desk.available(USER), (110 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "1", "1"]);
    desk.stopped();
}

/// Goal: an order that was PAID before a restore, and is closed behind it, is not credited a second
/// time by its payment, nor by an operator. Method: its credit is there with its money.
#[test]
fn a_closed_order_with_a_restored_credit_holds_its_payment() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    let wished = desk.recharges.wished(&order, ClosingWish::Expired, "till");
    block_on(wished).expect("wished");
    block_on(desk.recharges.closed(&order)).expect("closed");
    desk.site.sql(&format!(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, {USER}, 100e8, 3, 4, 110e8, 'recharge/{}/credit')",
        order.id.ulid()
    ));
    let (payment, cause) = desk.held(&desk.facts(&order, "4200001"));
    assert_eq!(cause, HeldCause::Duplicate);
    desk.not_credited(&payment, "was credited before");
    assert_eq!(desk.available(USER), (10 * COIN).to_string());
    assert_eq!(desk.credits(), ["1", "0", "0"]);
    let named = "SELECT subject FROM audit_recharges('epoch', 'infinity')";
    assert_eq!(desk.value(named), format!("recharge/{}/credit", order.id.ulid()));
    desk.stopped();
}
