use ubscore::recharge::returned::{ReturnEvent, ReturnState};

use super::*;
use crate::schema::committed::fresh;
use ubscore::recharge::order::RechargeEvent;
use ubscore::recharge::payment::PaymentEvent;

/// The pairs that some sequence of steps reaches.
fn reaches<S: Copy + PartialEq>(all: &[S], old: S, new: S, next: impl Fn(S) -> Vec<S>) -> bool {
    let mut reached = next(old);
    for _ in all {
        let further: Vec<S> = reached.iter().flat_map(|state| next(*state)).collect();
        reached.extend(further);
    }
    reached.contains(&new)
}

/// Goal: PostgreSQL admits the reachable pairs of the three machines, and no others. Method: all
/// pairs, through the functions.
#[test]
fn postgresql_admits_the_transitive_closure_of_the_machines_of_recharges() {
    let site = fresh();
    let session = site.session();
    let asks = |name: &str, old: i16, new: i16| {
        let asked = format!("SELECT {name}({old}::smallint, {new}::smallint)");
        session.sql(&asked)[0][0] == "t"
    };
    for old in RechargeState::ALL {
        for new in RechargeState::ALL {
            let nexts = |state: RechargeState| {
                RechargeEvent::ALL.into_iter().filter_map(|event| state.next(event)).collect()
            };
            let want = reaches(&RechargeState::ALL, old, new, nexts);
            let got = asks("recharge_state_admits", old.number(), new.number());
            assert_eq!(got, want, "{old:?} {new:?}");
        }
    }
    for old in Disposition::ALL {
        for new in Disposition::ALL {
            let nexts = |state: Disposition| {
                PaymentEvent::ALL.into_iter().filter_map(|event| state.next(event)).collect()
            };
            let want = reaches(&Disposition::ALL, old, new, nexts);
            let got = asks("payment_disposition_admits", old.number(), new.number());
            assert_eq!(got, want, "{old:?} {new:?}");
        }
    }
    for old in ReturnState::ALL {
        for new in ReturnState::ALL {
            let nexts = |state: ReturnState| {
                ReturnEvent::ALL.into_iter().filter_map(|event| state.next(event)).collect()
            };
            let want = reaches(&ReturnState::ALL, old, new, nexts);
            let got = asks("return_state_admits", old.number(), new.number());
            assert_eq!(got, want, "{old:?} {new:?}");
        }
    }
}

/// Goal: rows of money stand against every role. Method: each forbidden change by SQL.
#[test]
fn rows_of_recharges_stand() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    desk.told(&desk.facts(&order, "4200001"));
    desk.told(&desk.facts(&order, "4200002"));
    let session = desk.site.session();
    session.sql("UPDATE recharge_returns SET channel_return_no = 'a', version = version + 1");
    let allowed = "SET history = history || history[1], pay = NULL, version = version + 1";
    session.sql(&format!("UPDATE recharges_tb {allowed}"));
    for change in [
        "UPDATE recharges_tb SET history = history[2:], version = version + 1",
        "UPDATE recharges_tb SET history[1].actor = 'another', version = version + 1",
        "UPDATE recharges_tb SET closing = 1, version = version + 1",
        "UPDATE recharges_tb SET expires_at = now(), version = version + 1",
        "UPDATE recharges_tb SET reference = 'another', version = version + 1",
        "UPDATE recharges_tb SET pay = 'another', version = version + 1",
        "UPDATE channel_payments SET ordinal = 7, version = version + 1 WHERE disposition = 20",
        "UPDATE recharge_returns SET channel_return_no = 'b', version = version + 1",
        "UPDATE recharge_returns SET created_at = now(), version = version + 1",
        "UPDATE recharges_tb SET amount = 1, version = version + 1",
        "UPDATE recharges_tb SET next_at = now()",
        "DELETE FROM recharges_tb",
        "UPDATE channel_payments SET disposition = 10, cause = 1, version = version + 1",
        "UPDATE channel_payments SET minor_units = 1, version = version + 1",
        "DELETE FROM channel_payments",
        "UPDATE recharge_movements SET amount = 1",
        "DELETE FROM recharge_movements",
    ] {
        assert_eq!(session.sql_refused(change), "UB003", "{change}");
    }
    desk.stopped();
}

/// Goal: each broken law of the rows is named, and whole rows have no finding. Method: each law is
/// broken by SQL behind the guards.
#[test]
fn rch_038_rows_that_contradict_each_other_are_named() {
    let desk = Desk::new();
    let order = desk.paying("order-1");
    desk.told(&desk.facts(&order, "4200001"));
    let other = desk.paying("order-2");
    let odd = Facts { minor_units: FEN + 1, ..desk.facts(&other, "4200002") };
    desk.held(&odd);
    let third = desk.paying("order-3");
    let (payment, _) = desk.held(&Facts { discount: true, ..desk.facts(&third, "4200003") });
    desk.ended(&payment, HeldEnd::Dismiss);
    let found = "SELECT subject FROM audit_recharges('epoch', 'infinity') ORDER BY 1";
    assert_eq!(desk.site.sql(found), Vec::<Vec<String>>::new(), "whole");
    let breaks = |change: &str, subject: &str| {
        let session = desk.site.session();
        session.sql("BEGIN; SET LOCAL session_replication_role = replica");
        session.sql(change);
        let rows = session.sql(found);
        assert!(rows.iter().any(|row| row[0].starts_with(subject)), "{change}: {rows:?}");
        session.sql("ROLLBACK");
    };
    breaks("DELETE FROM external_operations", "recharge/");
    breaks("UPDATE external_operations SET amount = 1", "recharge/");
    breaks("UPDATE recharge_movements SET amount = 1 WHERE kind = 1", "payment ");
    breaks("DELETE FROM recharge_movements WHERE kind = 1", "recharge ");
    breaks("DELETE FROM recharge_movements WHERE kind = 1", "recharge/");
    breaks("UPDATE channel_payments SET disposition = 20 WHERE disposition = 10", "payment ");
    breaks("DELETE FROM recharge_movements WHERE kind = 3", "payment ");
    breaks("UPDATE channel_payments SET disposition = -40 WHERE disposition = 10", "payment ");
    breaks("UPDATE recharges_tb SET state = 40, paid_at = now() WHERE state = 10", "recharge ");
    desk.stopped();
}
