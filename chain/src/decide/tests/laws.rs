//! The laws of the chapter for one step, and random facts against them.

use proptest::prelude::*;

use super::*;
use crate::fee;

/// Checks a step against the laws.
pub(super) fn hold(before: &Tx, fact: &TxFact, rules: &TxRules, step: &TxStep) {
    let after = &step.tx;
    let about = format!("{fact:?}\nbefore {before:?}\nafter {after:?}\n{:?}", step.effects);
    if step.is_written(before) {
        assert_eq!(after.version, before.version + 1, "{about}");
        assert!(!before.is_final, "final is final: {about}");
    } else {
        assert_eq!(after, before, "{about}");
        assert!(!step.effects.is_empty() && !step.submits && !step.is_new_attempt, "{about}");
        assert!(step.answers.is_none() && step.confirmed.is_none(), "{about}");
    }
    assert_eq!((after.id, &after.new, after.nonce), (before.id, &before.new, before.nonce));
    assert!(before.wish == Wish::Pay || after.wish == before.wish, "{about}");
    moved(before, fact, after, &about);
    attempted(before, fact, rules, step, &about);
    sent(before, step, &about);
    told(before, step, &about);
    for effect in &step.effects {
        if let Effect::Sign { kind, price, gas } = effect {
            let prices: Vec<GasPrice> = before.attempts.iter().map(|it| it.price).collect();
            assert!(rules.caps.admit(*price, *gas) && rules.market.is_some(), "{about}");
            assert!(fee::replaces(*price, &prices, rules.bump_percent), "{about}");
            assert_eq!(kind.pays(), after.wish == Wish::Pay, "{about}");
            assert!(!(rules.is_suspended && kind.pays()), "{about}");
            assert!(after.receipt.is_none() && !after.state.is_terminal(), "{about}");
        }
    }
}

/// Only the chain ends a row that has a nonce, and only by the table.
fn moved(before: &Tx, fact: &TxFact, after: &Tx, about: &str) {
    let is_admitted = |event: &TxEvent| before.state.next(*event) == Some(after.state);
    let is_moved = after.state != before.state;
    assert!(!is_moved || TxEvent::ALL.iter().any(is_admitted), "{about}");
    assert!(after.state.is_terminal() || !after.is_final, "{about}");
    if before.state.is_terminal() {
        let (version, is_final) = (after.version, after.is_final);
        assert_eq!(*after, Tx { version, is_final, ..before.clone() }, "{about}");
        assert!(is_final || !before.is_final, "{about}");
    }
    assert_eq!(after.code.is_some(), after.state == TxState::Failed, "{about}");
    if is_moved && after.state.is_terminal() {
        let proof = before.receipt.map(|receipt| receipt.proof);
        let fits = match (fact, after.state, after.code) {
            (TxFact::Refused(_) | TxFact::Expired | TxFact::Cancel, TxState::Failed, _) => {
                before.nonce.is_none()
            }
            (TxFact::Taken(_), TxState::Failed, Some(FailCode::NonceTaken)) => proof.is_none(),
            (TxFact::Final, TxState::Confirmed, None) => proof == Some(Proof::Paid),
            (TxFact::Final, TxState::Failed, Some(FailCode::Reverted)) => {
                proof == Some(Proof::Reverted)
            }
            (TxFact::Final, TxState::Failed, Some(FailCode::Cancelled | FailCode::Filled)) => {
                proof == Some(Proof::Nothing)
            }
            (TxFact::Resolve { .. }, _, _) => proof == Some(Proof::Unproven),
            _ => false,
        };
        assert!(fits, "{about}");
    }
}

/// Attempts are added one by one, and never change but in their answers.
fn attempted(before: &Tx, fact: &TxFact, rules: &TxRules, step: &TxStep, about: &str) {
    let (old, new) = (&before.attempts, &step.tx.attempts);
    assert_eq!(new.len(), old.len() + usize::from(step.is_new_attempt), "{about}");
    for (old, new) in old.iter().zip(new) {
        let (class, was_in_pool) = (new.class, new.was_in_pool);
        assert_eq!(*new, Attempt { class, was_in_pool, ..old.clone() }, "{about}");
        assert!(new.was_in_pool || !old.was_in_pool, "{about}");
    }
    if let Some(added) = new.get(old.len()) {
        let number = old.last().map_or(1, |last| last.number + 1);
        assert_eq!((added.number, added.class), (number, None), "{about}");
        if added.was_in_pool {
            // It is on the chain, and does not leave again.
            assert!(matches!(fact, TxFact::Forgotten(_)) && !step.submits, "{about}");
            return;
        }
        assert!(rules.caps.admit(added.price, added.gas), "{about}");
        for old in old {
            assert!(added.price.max_fee > old.price.max_fee, "{about}");
            assert!(added.price.max_tip > old.price.max_tip, "{about}");
        }
        assert_eq!(added.kind.pays(), before.wish == Wish::Pay, "{about}");
        assert!(!(rules.is_suspended && added.kind.pays()), "{about}");
        assert!(step.submits && step.effects.contains(&Effect::Send { attempt: number }));
    }
}

/// Nothing leaves that is not stored, and each send has the plan of the next one before it.
fn sent(before: &Tx, step: &TxStep, about: &str) {
    for effect in &step.effects {
        let Effect::Send { attempt } = effect else { continue };
        let stored = step.tx.attempts.iter().find(|it| it.number == *attempt);
        let kind = stored.expect("a stored attempt").kind;
        if before.state.is_terminal() {
            assert!(step.tx.state == TxState::Confirmed || !kind.pays(), "{about}");
        } else {
            assert!(step.submits && step.tx.resubmit_in.is_some(), "{about}");
            assert!(step.tx.wish == Wish::Pay || !kind.pays(), "{about}");
            assert!(step.tx.receipt.is_none(), "{about}");
        }
    }
}

/// The list is the receipt's, and its number rises with each one that is replaced.
fn told(before: &Tx, step: &TxStep, about: &str) {
    let after = &step.tx;
    let first = after.told.first().map(|first| (first.number, first.hash));
    let receipt = after.receipt.map(|receipt| (receipt.block_number, receipt.block_hash));
    assert!(first.is_none() || first == receipt, "{about}");
    let is_replaced = !after.told.starts_with(&before.told);
    assert_eq!(after.fork, before.fork + u32::from(is_replaced), "{about}");
    if let Some(told) = &step.confirmed {
        let known = if told.new_fork { 0 } else { before.told.len() };
        assert_eq!(after.told[known..], told.blocks, "{about}");
        assert!(told.new_fork || !before.told.is_empty(), "{about}");
    }
}

/// A payment that the rows lack.
fn forgotten(number: u8) -> Signed {
    Signed {
        kind: AttemptKind::Bump,
        raw: Bytes::from(vec![number]),
        hash: B256::repeat_byte(number),
        price: GasPrice { max_fee: (1 + u128::from(number)) * GWEI, max_tip: GWEI },
        gas: 21_000,
    }
}

/// A random fact about a row, from three numbers.
fn fact(row: &Row, (kind, one, two): (u8, u8, u8)) -> TxFact {
    let attempt = u32::from(one % 5);
    let branch = two % 3;
    let class = SendClass::ALL[usize::from(two) % SendClass::ALL.len()];
    let other = SendClass::ALL[usize::from(one) % SendClass::ALL.len()];
    match kind % 24 {
        0 => TxFact::Delayed(SubState::ALL[usize::from(one) % SubState::ALL.len()]),
        1 if one == 0 => TxFact::Refused("TX_WOULD_REVERT".to_owned()),
        2 if one == 0 => TxFact::Expired,
        3 | 4 => TxFact::Turn,
        5..=7 => match row.signature() {
            Some(signed) => TxFact::Signed(signed),
            None => TxFact::Unsigned,
        },
        8 | 9 => TxFact::Answered { attempt, answers: said(&[class]) },
        10 => TxFact::Answered { attempt, answers: said(&[class, other]) },
        11 => TxFact::Answered { attempt, answers: Vec::new() },
        12 => TxFact::Found { attempt },
        13 => TxFact::Missing,
        14 | 15 => {
            let proof = Proof::ALL[usize::from(two / 3) % Proof::ALL.len()];
            TxFact::Mined(row.receipt(attempt, branch, proof))
        }
        16 => TxFact::Unmined,
        17 | 18 => {
            let first = 100 + u64::from(one % 2) * u64::try_from(row.tx.told.len()).unwrap_or(0);
            let blocks = (first..=first + u64::from(two / 64)).map(|at| block(branch, at));
            TxFact::Confirmed(Confirmed { new_fork: one % 2 == 0, blocks: blocks.collect() })
        }
        19 => TxFact::Final,
        20 if one < 64 => TxFact::Taken(B256::repeat_byte(8)),
        20 if one < 128 => TxFact::Stale,
        20 if one < 160 => TxFact::Forgotten(forgotten(two)),
        21 if one < 64 => TxFact::Cancel,
        21 if one < 96 => TxFact::Fill,
        22 if one < 64 => TxFact::Resolve { is_paid: two % 2 == 0 },
        22 if one < 128 => TxFact::Unaccounted,
        22 if one < 144 => TxFact::Unspent,
        22 if one < 192 => TxFact::Past,
        22 => TxFact::Resubmit,
        _ => TxFact::Due { is_lowest: two % 2 == 0 },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Goal: no order of facts breaks a law. Method: random facts about one row, under rules that
    /// change on the way; every step is checked.
    #[test]
    fn random_facts_break_no_law(
        facts in prop::collection::vec((any::<(u8, u8, u8)>(), any::<u8>()), 1..80),
        has_nonce in prop::bool::weighted(0.9),
    ) {
        let mut row = if has_nonce { Row::allocated() } else { Row::new() };
        for (seed, hour) in facts {
            row.rules.is_suspended = hour % 8 == 1;
            row.rules.is_resubmitted = hour % 8 != 2;
            row.rules.is_watched = hour % 3 == 1;
            row.rules.attempts_max = u32::from(hour % 3) * 4;
            row.rules.market = match hour % 16 {
                3 => None,
                4 => Some(GasMarket { base_fee: 300 * GWEI, tip: GWEI }),
                _ => rules().market,
            };
            row.tx.sent_since = row.tx.sent_since.map(|_| Duration::from_secs(hour.into()));
            let fact = fact(&row, seed);
            let effects = row.effects.clone();
            row.hand(fact);
            // A signature that is under way stays under way.
            if row.signature().is_none() {
                row.effects.extend(effects.into_iter().filter(|it| matches!(it, Effect::Sign { .. })));
            }
        }
    }
}
