//! A row that is handed facts one by one. Every step is checked against the laws of the chapter.

mod answers;
mod laws;
mod receipts;
mod resends;
mod states;

use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use uuid::Uuid;

use super::*;
use crate::payload::TxPayload;
use crate::tx::{NewTx, Proof, TxId};
use crate::view::BlockRef;

const GWEI: u128 = 1_000_000_000;
const INTERVAL: Duration = Duration::from_secs(60);

fn rules() -> TxRules {
    TxRules {
        is_resubmitted: true,
        interval: INTERVAL,
        bump_after: 2,
        attempts_max: 10,
        bump_percent: 12,
        stale: Duration::from_secs(60),
        required: 2,
        is_watched: false,
        caps: GasCaps { max_fee: 500 * GWEI, tip: 5 * GWEI, cost: 100_000_000 * GWEI },
        market: Some(GasMarket { base_fee: GWEI, tip: GWEI }),
        is_suspended: false,
    }
}

fn created() -> Tx {
    let payload = TxPayload {
        to: Address::repeat_byte(2),
        value: U256::from(5),
        data: Bytes::new(),
        token: None,
        gas: None,
    };
    let new = NewTx {
        signer: Address::repeat_byte(1),
        request_id: "withdrawal/1".to_owned(),
        business_key: None,
        payload,
        gas: Some(50_000),
        deadline_ms: None,
    };
    Tx::stored(TxId(Uuid::from_u128(7)), new, None)
}

/// The block of a branch at a height; all branches share the blocks below 100.
fn block(branch: u8, number: u64) -> BlockRef {
    let hash = |number: u64| {
        let mut bytes = [if number < 100 { 0 } else { branch }; 32];
        bytes[24..].copy_from_slice(&number.to_be_bytes());
        B256::from(bytes)
    };
    BlockRef { number, hash: hash(number), parent: hash(number.wrapping_sub(1)) }
}

/// A row, and the effects of its last step.
#[derive(Clone)]
struct Row {
    tx: Tx,
    rules: TxRules,
    effects: Vec<Effect>,
    /// Whether the last fact changed or asked something.
    is_moved: bool,
}

impl Row {
    fn new() -> Row {
        Row { tx: created(), rules: rules(), effects: Vec::new(), is_moved: false }
    }

    fn allocated() -> Row {
        let mut row = Row::new();
        row.tx.state = TxState::Allocated;
        row.tx.nonce = Some(3);
        row
    }

    /// One stored attempt, no answer.
    fn submitted() -> Row {
        let mut row = Row::allocated();
        row.hand(TxFact::Turn);
        row.sign();
        row
    }

    /// A pool has its one attempt.
    fn tracking() -> Row {
        let mut row = Row::submitted();
        row.answer(1, SendClass::Accepted);
        row
    }

    /// A receipt of an attempt in block 100 of branch 1.
    fn mined(attempt: u32, proof: Proof) -> Row {
        let mut row = Row::tracking();
        row.mine(attempt, 1, proof);
        row
    }

    fn confirmed() -> Row {
        let mut row = Row::mined(1, Proof::Paid);
        row.confirm(1, 2);
        row.hand(TxFact::Final);
        row
    }

    fn failed() -> Row {
        let mut row = Row::mined(1, Proof::Reverted);
        row.confirm(1, 2);
        row.hand(TxFact::Final);
        row
    }

    /// Hands in a fact, and checks the step.
    fn hand(&mut self, fact: TxFact) -> &[Effect] {
        let step = decide(&self.tx, &fact, &self.rules);
        self.is_moved = step.is_some();
        self.effects.clear();
        if let Some(step) = step {
            laws::hold(&self.tx, &fact, &self.rules, &step);
            self.tx = step.tx;
            self.effects = step.effects;
        }
        &self.effects
    }

    /// Signs as the last step wants it.
    fn signature(&self) -> Option<Signed> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Sign { kind, price, gas } => {
                let hash = [self.tx.version.to_be_bytes(), gas.to_be_bytes()].concat();
                let mut raw = price.max_fee.to_be_bytes().to_vec();
                raw.extend(hash);
                let hash = B256::left_padding_from(&raw);
                let (kind, price, gas) = (*kind, *price, *gas);
                Some(Signed { kind, raw: raw.into(), hash, price, gas })
            }
            _ => None,
        })
    }

    fn sign(&mut self) -> &[Effect] {
        let signed = self.signature().expect("the last step wants a signature");
        self.hand(TxFact::Signed(signed))
    }

    fn answer(&mut self, attempt: u32, class: SendClass) -> &[Effect] {
        self.hand(TxFact::Answered { attempt, answers: said(&[class]) })
    }

    /// Every endpoint refuses the price of an attempt, and the time that this plans comes.
    fn refuse(&mut self, attempt: u32) -> &[Effect] {
        self.answer(attempt, SendClass::Underpriced);
        assert_eq!((self.signs(), self.tx.resubmit_in), (vec![], Some(Duration::ZERO)));
        self.hand(TxFact::Due { is_lowest: false })
    }

    fn receipt(&self, attempt: u32, branch: u8, proof: Proof) -> TxReceipt {
        let hash = usize::try_from(attempt)
            .ok()
            .and_then(|number| self.tx.attempts.get(number.checked_sub(1)?))
            .map_or(B256::ZERO, |attempt| attempt.hash);
        let BlockRef { number, hash: block_hash, .. } = block(branch, 100);
        TxReceipt {
            attempt,
            hash,
            block_number: number,
            block_hash,
            proof,
            gas_used: 21_000,
            gas_price: 3,
        }
    }

    fn mine(&mut self, attempt: u32, branch: u8, proof: Proof) {
        self.hand(TxFact::Mined(self.receipt(attempt, branch, proof)));
        assert_eq!(self.tx.sub, Some(SubState::Mined));
    }

    /// Tells the whole list of a branch: the block of the receipt, and `more` on top of it.
    fn confirm(&mut self, branch: u8, more: u64) {
        let blocks = (100..=100 + more).map(|number| block(branch, number)).collect();
        self.hand(TxFact::Confirmed(Confirmed { new_fork: true, blocks }));
    }

    fn stands(&self) -> (TxState, Option<SubState>) {
        (self.tx.state, self.tx.sub)
    }

    fn ends(&self) -> (TxState, Option<FailCode>) {
        (self.tx.state, self.tx.code)
    }

    /// The kinds that the last step wants signed.
    fn signs(&self) -> Vec<AttemptKind> {
        let kind = |effect: &Effect| match effect {
            Effect::Sign { kind, .. } => Some(*kind),
            _ => None,
        };
        self.effects.iter().filter_map(kind).collect()
    }

    /// The attempts that the last step sends.
    fn sends(&self) -> Vec<u32> {
        let sent = |effect: &Effect| match effect {
            Effect::Send { attempt } => Some(*attempt),
            _ => None,
        };
        self.effects.iter().filter_map(sent).collect()
    }
}

/// One answer of each class, of one endpoint each.
fn said(classes: &[SendClass]) -> Vec<EndpointAnswer> {
    let answer = |(index, class): (usize, &SendClass)| EndpointAnswer {
        endpoint: format!("node{index}"),
        class: *class,
        text: class.name().to_owned(),
    };
    classes.iter().enumerate().map(answer).collect()
}
