//! One cycle of heads of one endpoint: its head, the tags, and the headers that are new, down to a
//! block that is known.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use alloy_primitives::B256;
use chain::view::{BlockRef, ChainView, ViewError};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::look::Seen;
use super::member::{Answer, BATCH_CALLS_MAX, Member};
use super::{Block, BlockAt, Endpoint, RpcCall, RpcError, RpcValue};

/// The most blocks of a view. A finalized block that is deeper is read when a receipt names it.
const VIEW_BLOCKS_MAX: u64 = 4_096;
/// Blocks that stay below the finalized one.
const BELOW_FINALIZED: u64 = 16;
/// The most blocks below a view that are kept. Behind this number they are read anew.
const OLD_BLOCKS_MAX: usize = 4_096;
/// The most heights below a view that are read in one cycle.
const OLD_BATCH: usize = 4 * BATCH_CALLS_MAX;

/// The rules of all endpoints of a pool.
pub(super) struct HeadRules {
    pub(super) chain_id: u64,
    /// The least blocks of a view.
    pub(super) keep: u64,
    /// Confirmations on top of a receipt's block.
    pub(super) required: u64,
    pub(super) asks_safe: bool,
    /// The hash of block 0, once it is known.
    pub(super) genesis: Mutex<Option<B256>>,
}

/// Why an endpoint shows nothing in this cycle.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    /// It did not answer, or it is left out.
    #[error("no answer")]
    Silent,
    /// It is of another chain.
    #[error("chain {0} or its block 0 is another one")]
    Foreign(u64),
    /// It lacks a block that it must have.
    #[error("it lacks block {0}")]
    Lacks(u64),
    /// Its blocks are not used.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// A cycle under way. One that takes longer than a look goes on in the next one.
type Running = Pin<Box<dyn Future<Output = Result<Arc<Seen>, HeadError>> + Send>>;

/// The cycles of all endpoints, by endpoint.
#[derive(Default)]
pub(super) struct Cycles(Vec<Option<Running>>);

impl Cycles {
    /// Runs one cycle of each endpoint. It waits for all of them, but once `enough` succeeded not
    /// beyond `soon`, and never beyond `late`: one slow endpoint must not hold up the others.
    pub(super) async fn run<E: Endpoint>(
        &mut self,
        members: &[Arc<Member<E>>],
        rules: &Arc<HeadRules>,
        enough: usize,
        (soon, late): (Duration, Duration),
    ) -> Vec<Result<Arc<Seen>, HeadError>> {
        self.0.resize_with(members.len(), || None);
        for (running, member) in self.0.iter_mut().zip(members) {
            let (member, rules) = (member.clone(), rules.clone());
            running.get_or_insert_with(|| Box::pin(async move { cycle(&member, &rules).await }));
        }
        let mut done: Vec<Option<Result<Arc<Seen>, HeadError>>> = Vec::new();
        done.resize_with(members.len(), || None);
        let (mut soon, mut late) = (pin!(sleep(soon)), pin!(sleep(late)));
        poll_fn(|context| {
            for (running, done) in self.0.iter_mut().zip(&mut done) {
                let polled = running.as_mut().map(|running| running.as_mut().poll(context));
                if let Some(Poll::Ready(cycle)) = polled {
                    *running = None;
                    *done = Some(cycle);
                }
            }
            let is_soon = soon.as_mut().poll(context).is_ready();
            let is_late = late.as_mut().poll(context).is_ready();
            let succeeded = done.iter().filter(|cycle| matches!(cycle, Some(Ok(_)))).count();
            let is_whole = done.iter().all(Option::is_some);
            if is_whole || is_late || (is_soon && succeeded >= enough) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        done.into_iter().map(|cycle| cycle.unwrap_or(Err(HeadError::Silent))).collect()
    }
}

/// Reads one cycle and keeps it.
async fn cycle<E: Endpoint>(
    member: &Arc<Member<E>>,
    rules: &HeadRules,
) -> Result<Arc<Seen>, HeadError> {
    bind(member, rules).await?;
    let mut calls = vec![RpcCall::Block(BlockAt::Latest), RpcCall::Block(BlockAt::Finalized)];
    if rules.asks_safe {
        calls.push(RpcCall::Block(BlockAt::Safe));
    }
    let mut answers = member.ask(&calls).await.ok_or(HeadError::Silent)?.into_iter();
    let head = block(answers.next())?.ok_or(HeadError::Lacks(0))?;
    // A chain without a tag answers an error or nothing. Without the tag nothing becomes final.
    let finalized = block(answers.next()).ok().flatten().map(|block| block.at);
    let safe = block(answers.next()).ok().flatten().map(|block| block.at);

    let (before, wanted) = {
        let mut chain = member.chain.lock();
        (chain.seen.clone(), std::mem::take(&mut chain.wanted))
    };
    let is_same = before.view.head() == Some(&head.at)
        && before.safe == safe
        && finalized.is_none_or(|tag| before.view.finalized() == Some(&tag));
    if is_same && wanted.is_empty() {
        return Ok(before);
    }
    let deep = finalized.map_or(0, |tag| head.at.number.saturating_sub(tag.number));
    let keep = rules.keep.max(deep.saturating_add(BELOW_FINALIZED)).min(VIEW_BLOCKS_MAX);
    let floor = head.at.number.saturating_sub(keep);
    let read = walk(member, &before.view, head, floor).await?;

    let mut view = before.view.clone();
    let refs: Vec<BlockRef> = read.iter().map(|block| block.at).collect();
    view.take(&refs, finalized, usize::try_from(keep).unwrap_or(usize::MAX))?;
    let lowest = view.from(0, 1).next().map_or(0, |block| block.number);
    let mut base_fees = before.base_fees.clone();
    base_fees.extend(read.iter().map(|block| (block.at.number, block.base_fee)));
    base_fees.retain(|number, _| (lowest..=head.at.number).contains(number));
    let mut blocks = before.view.from(0, usize::MAX);
    let went_on = blocks.any(|block| view.has(block.number, block.hash));
    let mut old = if went_on { before.old.clone() } else { BTreeMap::new() };
    if !wanted.is_empty() {
        read_old(member, &view, &mut old, wanted.into_iter().collect(), rules.required).await;
    }
    let seen = Arc::new(Seen { view, safe, base_fees, old });
    member.chain.lock().seen = seen.clone();
    Ok(seen)
}

/// Compares the endpoint's chain with ours, once.
async fn bind<E: Endpoint>(member: &Arc<Member<E>>, rules: &HeadRules) -> Result<(), HeadError> {
    if member.chain.lock().is_bound {
        return Ok(());
    }
    let calls = [RpcCall::ChainId, RpcCall::Block(BlockAt::Number(0))];
    let answers = member.ask(&calls).await.ok_or(HeadError::Silent)?;
    let [Ok(RpcValue::Number(id)), Ok(RpcValue::Block(Some(first)))] = answers.as_slice() else {
        return Err(HeadError::Silent);
    };
    let genesis = *rules.genesis.lock().get_or_insert(first.at.hash);
    if *id != rules.chain_id || first.at.hash != genesis {
        member.set_aside();
        return Err(HeadError::Foreign(*id));
    }
    member.chain.lock().is_bound = true;
    Ok(())
}

/// The blocks from the head down to a known one or to the floor, the head first.
async fn walk<E: Endpoint>(
    member: &Arc<Member<E>>,
    known: &ChainView,
    head: Block,
    floor: u64,
) -> Result<Vec<Block>, HeadError> {
    let mut read = vec![head];
    let mut step = if known.head().is_some() { 1 } else { BATCH_CALLS_MAX as u64 };
    if known.head().is_some_and(|before| head.at.number < before.number) {
        // The view refuses a head that fell, so nothing more is read.
        return Ok(read);
    }
    loop {
        let low = read.last().expect("it begins with the head").at;
        let is_known = known.has(low.number, low.hash);
        if low.number <= floor || is_known || known.has(low.number - 1, low.parent) {
            break;
        }
        // Behind a pause all new heights are read at once; on another branch ever more of them.
        let new = known.head().map_or(0, |before| (low.number - 1).saturating_sub(before.number));
        let count = new.max(step).min(low.number - floor).min(BATCH_CALLS_MAX as u64);
        step = step.saturating_mul(2);
        let heights = (low.number - count..low.number).rev();
        let calls: Vec<RpcCall> =
            heights.map(|number| RpcCall::Block(BlockAt::Number(number))).collect();
        let answers = member.ask(&calls).await.ok_or(HeadError::Silent)?;
        let linked = read.len();
        for answer in answers {
            let Some(below) = block(Some(answer))? else { break };
            let above = read.last().expect("it begins with the head").at;
            if below.at.hash != above.parent || below.at.number.checked_add(1) != Some(above.number)
            {
                break;
            }
            read.push(below);
        }
        if read.len() == linked {
            // The chain changed between the two questions: the parent has a hash, not a height.
            let call = RpcCall::Block(BlockAt::Hash(low.parent));
            let parent = block(member.ask_one(call).await)?;
            // Without this check a circle of parents would be walked for ever.
            let links = |parent: &Block| {
                parent.at.hash == low.parent && parent.at.number.checked_add(1) == Some(low.number)
            };
            read.push(parent.filter(links).ok_or(HeadError::Lacks(low.number - 1))?);
        }
    }
    Ok(read)
}

/// Reads blocks below the view that receipts named, each with its confirmations. Only heights that
/// nothing changes any more are kept: those below the view.
async fn read_old<E: Endpoint>(
    member: &Arc<Member<E>>,
    view: &ChainView,
    old: &mut BTreeMap<u64, BlockRef>,
    wanted: Vec<u64>,
    required: u64,
) {
    let Some(lowest) = view.from(0, 1).next().map(|block| block.number) else { return };
    let mut heights: Vec<u64> = wanted
        .into_iter()
        .flat_map(|number| number..=number.saturating_add(required))
        .filter(|number| *number < lowest && !old.contains_key(number))
        .collect();
    heights.sort_unstable();
    heights.dedup();
    heights.truncate(OLD_BATCH);
    if old.len() + heights.len() > OLD_BLOCKS_MAX {
        old.clear();
    }
    let at = |number: &u64| RpcCall::Block(BlockAt::Number(*number));
    let calls: Vec<RpcCall> = heights.iter().map(at).collect();
    let answers = member.ask(&calls).await.unwrap_or_default();
    for (number, answer) in heights.into_iter().zip(answers) {
        if let Ok(Some(block)) = block(Some(answer))
            && block.at.number == number
        {
            old.insert(number, block.at);
        }
    }
}

/// A block in an answer. An error that was said is a block that is not there.
fn block(answer: Option<Answer>) -> Result<Option<Block>, HeadError> {
    match answer {
        Some(Ok(RpcValue::Block(block))) => Ok(block),
        Some(Err(RpcError::Said { .. })) => Ok(None),
        _ => Err(HeadError::Silent),
    }
}
