//! The answers of several endpoints about one receipt.

use alloy_primitives::B256;

use super::look::Look;
use super::member::{Answer, Member};
use super::{Endpoint, ReceiptRead, RpcValue};

/// The answer to a question for a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiptAnswer {
    /// A quorum of endpoints says it in the same words, and has its block. Its sender is not
    /// compared with the row's: that is the reader's part.
    Believed(ReceiptRead),
    /// A quorum of endpoints answered, and none of them has it.
    NotFound,
    /// Neither. Ask again later.
    Unclear,
}

/// The answers so far.
pub(super) struct Told {
    pub(super) hash: B256,
    reads: Vec<ReceiptRead>,
    missing: usize,
    is_unclear: bool,
}

impl Told {
    pub(super) fn of(hash: B256) -> Told {
        Told { hash, reads: Vec::new(), missing: 0, is_unclear: false }
    }

    /// Takes one endpoint's answer.
    pub(super) fn take<E: Endpoint>(&mut self, member: &Member<E>, answer: Answer) {
        match answer {
            Ok(RpcValue::Receipt(None)) => self.missing += 1,
            Ok(RpcValue::Receipt(Some(read))) if read.hash == self.hash => {
                let twin =
                    |other: &ReceiptRead| other.block_hash == read.block_hash && *other != *read;
                if self.reads.iter().any(twin) {
                    // Of one block there is one receipt: one of the two endpoints is wrong.
                    member.disagrees("receipt");
                }
                member.want(&member.seen(), read.block_number);
                self.reads.push(*read);
            }
            Ok(_) => {
                member.disagrees("receipt");
                self.is_unclear = true;
            }
            Err(_) => self.is_unclear = true,
        }
    }

    /// The receipt that a quorum says in the same words, in a block that a quorum has.
    pub(super) fn believed(&self, look: &Look, quorum: usize) -> Option<&ReceiptRead> {
        self.reads.iter().find(|read| {
            self.reads.iter().filter(|other| other == read).count() >= quorum
                && look.has(read.block_number, read.block_hash)
        })
    }

    pub(super) fn answer(&self, look: &Look, quorum: usize) -> ReceiptAnswer {
        if let Some(read) = self.believed(look, quorum) {
            return ReceiptAnswer::Believed(read.clone());
        }
        let is_missing = self.reads.is_empty() && !self.is_unclear && self.missing >= quorum;
        if is_missing { ReceiptAnswer::NotFound } else { ReceiptAnswer::Unclear }
    }
}
