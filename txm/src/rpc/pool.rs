//! Several endpoints as one: sends go to all of them, and an answer that decides comes from a
//! quorum.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::class::SendClass;
use chain::decide::EndpointAnswer;
use chain::fee::GasMarket;
use chain::payload::TxPayload;
use chain::view::BlockRef;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::heads::{Cycles, HeadError, HeadRules};
use super::look::{Look, Seen, median};
use super::member::{Answer, Member};
use super::told::{ReceiptAnswer, Told};
use super::{BlockAt, Endpoint, RpcCall, RpcError, RpcValue, TransactionRead};
use crate::options::{Finality, TxmOptions};

/// The most raw transactions of one batch. A pool keeps 16 nonces of one account.
const SEND_BATCH: usize = 16;
/// The longest text of an answer that is kept, bytes.
const TEXT_BYTES_MAX: usize = 200;
/// Blocks that a view keeps beyond those that the settings ask for.
const KEEP_MARGIN: usize = 32;

/// Several endpoints of one chain.
pub struct Pool<E> {
    members: Vec<Arc<Member<E>>>,
    quorum: usize,
    options: TxmOptions,
    rules: Arc<HeadRules>,
    /// One look at a time.
    cycles: tokio::sync::Mutex<Cycles>,
    /// The last time at which a quorum showed one head.
    answered: Mutex<Instant>,
}

/// The counts of a signer at one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The endpoint's name.
    pub endpoint: String,
    /// Mined transactions at its head: the next nonce without its pool.
    pub latest: u64,
    /// The next nonce with its pool.
    pub pending: u64,
}

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EstimateError {
    /// Each endpoint that answered says that the call fails.
    #[error("the call fails: {0}")]
    Reverts(String),
    /// No endpoint answered, or not about the call.
    #[error("no estimate: {0}")]
    Away(String),
}

/// Why the chain cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// No quorum of endpoints answered.
    #[error("{0} endpoints answered, fewer than chain.quorum")]
    Away(usize),
    /// Two endpoints are of different chains.
    #[error("the endpoints {0} and {1} are of different chains")]
    Differ(String, String),
}

impl<E: Endpoint> Pool<E> {
    /// A pool. `endpoints`: at least `options.quorum`.
    pub fn new(endpoints: Vec<E>, options: &TxmOptions) -> Pool<E> {
        let watched = usize::try_from(options.watch_blocks).unwrap_or(usize::MAX);
        let keep = options.required.max(watched).saturating_add(KEEP_MARGIN);
        let rules = HeadRules {
            chain_id: options.chain_id,
            keep: u64::try_from(keep).unwrap_or(u64::MAX),
            required: u64::try_from(options.required).unwrap_or(u64::MAX),
            asks_safe: options.finality == Finality::Safe,
            genesis: Mutex::new(None),
        };
        let member = |endpoint| Arc::new(Member::new(endpoint, options));
        Pool {
            members: endpoints.into_iter().map(member).collect(),
            quorum: options.quorum.max(1),
            options: options.clone(),
            rules: Arc::new(rules),
            cycles: tokio::sync::Mutex::default(),
            answered: Mutex::new(Instant::now()),
        }
    }

    /// Sends raw transactions to every endpoint at once, to each in their order, the next batch
    /// behind the answer of the one before. `raws`: the hash and the bytes of each. One list a raw
    /// transaction, one answer an endpoint; an empty list: every endpoint is set aside.
    pub async fn send(&self, raws: &[(B256, Bytes)]) -> Vec<Vec<EndpointAnswer>> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.send_to_those(&all, raws).await
    }

    /// The endpoints that are thought to answer, and those with an open breaker: sends to these go
    /// beside the others, so that a dead one holds up no answer. If none is thought to answer, all
    /// are.
    pub fn halves(&self) -> (Vec<usize>, Vec<usize>) {
        let is_open = |index: &usize| self.members[*index].is_shut();
        let (shut, well): (Vec<usize>, Vec<usize>) = (0..self.members.len()).partition(is_open);
        if well.is_empty() { (shut, well) } else { (well, shut) }
    }

    /// As [`Pool::send`], to these endpoints.
    pub async fn send_to_those(
        &self,
        those: &[usize],
        raws: &[(B256, Bytes)],
    ) -> Vec<Vec<EndpointAnswer>> {
        let members = those.iter().filter_map(|index| self.members.get(*index));
        let sends = members.map(|member| send_to(member, raws));
        let mut lists = vec![Vec::new(); raws.len()];
        for answers in join_all(sends).await {
            for (list, answer) in lists.iter_mut().zip(answers) {
                list.push(answer);
            }
        }
        lists
    }

    /// One cycle of heads of all endpoints.
    pub async fn look(&self) -> Arc<Look> {
        let times = (self.options.poll, self.options.rpc_timeout);
        let mut cycles = self.cycles.lock().await;
        let cycles = cycles.run(&self.members, &self.rules, self.quorum, times).await;
        let mut seen = Vec::with_capacity(self.members.len());
        for (member, cycle) in self.members.iter().zip(cycles) {
            if let Err(error) = &cycle
                && !matches!(error, HeadError::Silent)
            {
                member.disagrees("head");
                tracing::warn!(endpoint = member.endpoint.name(), %error, "its head is not used in this cycle");
            }
            seen.push(cycle.ok());
        }
        let now = Instant::now();
        let mut look = Look::new(seen, self.quorum);
        let mut answered = self.answered.lock();
        if look.head().is_some() {
            *answered = now;
        } else {
            // Answers without a quorum decide nothing: they are as good as none.
            look.blind = Some(now - *answered);
        }
        drop(answered);
        self.watch(&look);
        Arc::new(look)
    }

    /// Counts endpoints on another branch, and shows their heads.
    fn watch(&self, look: &Look) {
        let agreed = look.head().map(|head| head.at);
        for (member, seen) in self.members.iter().zip(&look.seen) {
            let Some(head) = seen.as_ref().and_then(|seen| seen.view.head()) else { continue };
            let endpoint = member.endpoint.name().to_owned();
            #[expect(clippy::cast_precision_loss, reason = "a gauge")]
            metrics::gauge!("ubscore_endpoint_head", "endpoint" => endpoint)
                .set(head.number as f64);
            let other = |at: &BlockRef| {
                let here = seen.as_ref().and_then(|seen| seen.view.at(at.number));
                here.is_some_and(|here| here.hash != at.hash)
            };
            if agreed.as_ref().is_some_and(other) {
                member.disagrees("branch");
            }
        }
    }

    /// The mined count of each signer at the head: the lowest nonce that is not mined, as high as
    /// a quorum says. `None`: no quorum of endpoints with this head answered.
    pub async fn mined(&self, look: &Look, signers: &[Address]) -> Vec<Option<u64>> {
        match look.head() {
            Some(head) => self.counts_at(look, head.at, signers).await,
            None => vec![None; signers.len()],
        }
    }

    /// The mined count of a signer at the highest final block, by the policy of the settings.
    pub async fn final_mined(&self, look: &Look, signer: Address) -> Option<u64> {
        let at = look.final_block(self.options.finality, self.options.required)?;
        self.counts_at(look, at, &[signer]).await.pop()?
    }

    /// Counts at a block, of all endpoints that have it: the highest that a quorum reaches, so that
    /// one endpoint alone neither raises nor holds down a count.
    async fn counts_at(&self, look: &Look, at: BlockRef, signers: &[Address]) -> Vec<Option<u64>> {
        let having = self.turn(look).into_iter().filter(|(_, seen)| seen.has(at.number, at.hash));
        let asked = having.map(|(member, _)| counts_of(member, at, signers));
        let answers: Vec<Vec<Option<u64>>> = join_all(asked).await;
        let agreed = |index: usize| {
            let of_one = answers.iter().filter_map(|counts| counts.get(index).copied().flatten());
            let mut counts: Vec<u64> = of_one.collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts.get(self.quorum - 1).copied()
        };
        (0..signers.len()).map(agreed).collect()
    }

    /// The number of endpoints.
    pub fn endpoints(&self) -> usize {
        self.members.len()
    }

    /// The counts of a signer, of every endpoint that answered.
    pub async fn counts(&self, signer: Address) -> Vec<Counts> {
        let calls =
            [RpcCall::Count(signer, BlockAt::Latest), RpcCall::Count(signer, BlockAt::Pending)];
        let of = |(member, answers): (&Arc<Member<E>>, Vec<Answer>)| match answers.as_slice() {
            [Ok(RpcValue::Number(latest)), Ok(RpcValue::Number(pending))] => Some(Counts {
                endpoint: member.endpoint.name().to_owned(),
                latest: *latest,
                // A pool knows at least the mined count.
                pending: *pending.max(latest),
            }),
            _ => None,
        };
        self.ask_all(&calls).await.into_iter().filter_map(of).collect()
    }

    /// The receipts of transactions. Each endpoint is asked until a quorum says the same.
    pub async fn receipts(&self, look: &Look, hashes: &[B256]) -> Vec<ReceiptAnswer> {
        let mut told: Vec<Told> = hashes.iter().map(|hash| Told::of(*hash)).collect();
        for (member, _) in self.turn(look) {
            let open: Vec<&mut Told> =
                told.iter_mut().filter(|it| it.believed(look, self.quorum).is_none()).collect();
            if open.is_empty() {
                break;
            }
            let calls: Vec<RpcCall> = open.iter().map(|it| RpcCall::Receipt(it.hash)).collect();
            let Some(answers) = member.ask(&calls).await else { continue };
            for (it, answer) in open.into_iter().zip(answers) {
                it.take(member, answer);
            }
        }
        told.into_iter().map(|it| it.answer(look, self.quorum)).collect()
    }

    /// The mined transactions with this signer and nonce, one of each endpoint that has it in a
    /// block of its own view. Endpoints that do not know the call say nothing.
    pub async fn by_sender_and_nonce(
        &self,
        look: &Look,
        signer: Address,
        nonce: u64,
    ) -> Vec<TransactionRead> {
        let mut found = self.located(look, RpcCall::BySenderAndNonce(signer, nonce)).await;
        found.retain(|read| read.from == signer && read.nonce == nonce);
        found
    }

    /// A mined transaction by its hash, one of each endpoint that has it in a block of its view.
    pub async fn by_hash(&self, look: &Look, hash: B256) -> Vec<TransactionRead> {
        let mut found = self.located(look, RpcCall::Transaction(hash)).await;
        found.retain(|read| read.hash == hash);
        found
    }

    /// The signed bytes of a transaction, as the first endpoint shows its fields. Their hash is the
    /// one asked, so no endpoint can show others. Without them: the number of endpoints that show a
    /// transaction of another form than ours.
    ///
    /// # Errors
    /// That number.
    pub async fn raw(&self, hash: B256) -> Result<Bytes, usize> {
        let answers = self.ask_all(&[RpcCall::Raw(hash)]).await;
        let mut others = 0;
        for answer in answers.into_iter().flat_map(|(_, answers)| answers) {
            match answer {
                Ok(RpcValue::Raw(Some(raw))) => return Ok(raw),
                Ok(RpcValue::Raw(None)) => others += 1,
                _ => {}
            }
        }
        Err(others)
    }

    /// The hashes of mined transactions with this signer and nonce, of every endpoint, in any
    /// block: those that it knows by signer and nonce, and those of `hashes`. Ascending, each
    /// once. `None`: no endpoint answered.
    pub async fn mined_with(
        &self,
        signer: Address,
        nonce: u64,
        hashes: &[B256],
    ) -> Option<Vec<B256>> {
        let mut calls = vec![RpcCall::BySenderAndNonce(signer, nonce)];
        calls.extend(hashes.iter().map(|hash| RpcCall::Transaction(*hash)));
        if hashes.is_empty() {
            // Its answer tells an endpoint without the call by nonce from one that is away.
            calls.push(RpcCall::Count(signer, BlockAt::Latest));
        }
        let answers = self.ask_all(&calls).await;
        let mut all = answers.iter().flat_map(|(_, answers)| answers);
        let is_away = all.all(|answer| matches!(answer, Err(RpcError::Unknown(_))));
        let answers: Vec<&RpcValue> = answers
            .iter()
            .flat_map(|(_, answers)| answers)
            .filter_map(|it| it.as_ref().ok())
            .collect();
        // The call by nonce may be unknown everywhere, and a row may have no hash.
        let is_silent = is_away || answers.is_empty() && !hashes.is_empty();
        let mut found: Vec<B256> = answers
            .into_iter()
            .filter_map(|value| match value {
                RpcValue::Transaction(Some(read)) => Some(read),
                _ => None,
            })
            .filter(|read| read.from == signer && read.nonce == nonce && read.block.is_some())
            .map(|read| read.hash)
            .collect();
        found.sort_unstable();
        found.dedup();
        (!is_silent).then_some(found)
    }

    /// The mined transactions that a call names, one of each endpoint that has its block. None that
    /// another endpoint with that block does not know.
    async fn located(&self, look: &Look, call: RpcCall) -> Vec<TransactionRead> {
        let asked = self.turn(look).into_iter().map(|(member, seen)| {
            let call = call.clone();
            async move {
                let Some(Ok(RpcValue::Transaction(read))) = member.ask_one(call).await else {
                    return None;
                };
                Some((member, seen, read))
            }
        });
        let answers: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let deniers = answers.iter().filter(|(_, _, read)| read.is_none());
        let deniers: Vec<&Seen> = deniers.map(|(_, seen, _)| *seen).collect();
        let mut found = Vec::with_capacity(answers.len());
        for (member, seen, read) in &answers {
            let Some(read) = read else { continue };
            let Some((number, hash)) = read.block else { continue };
            if !seen.has(number, hash) {
                member.want(seen, number);
            } else if !deniers.iter().any(|denier| denier.has(number, hash)) {
                found.push(*read);
            }
        }
        found
    }

    /// The market at the head: its base fee, and the middle one of the endpoints' tips, at least
    /// 1 wei.
    pub async fn market(&self, look: &Look) -> Option<GasMarket> {
        let head = look.head()?;
        let tips = self.ask_all(&[RpcCall::Tip]).await.into_iter();
        let tip = tips.filter_map(|(_, answers)| match answers.first() {
            Some(Ok(RpcValue::Amount(tip))) => u128::try_from(*tip).ok(),
            _ => None,
        });
        // No pool takes a tip of 0.
        let tip = median(tip.collect())?.max(1);
        Some(GasMarket { base_fee: head.base_fee, tip })
    }

    /// Whether an endpoint knows a transaction by its hash, in its pool or in a block.
    pub async fn has(&self, hash: B256) -> bool {
        let answers = self.ask_all(&[RpcCall::Transaction(hash)]).await;
        let knows = |answer: &Answer| {
            let Ok(RpcValue::Transaction(Some(read))) = answer else { return false };
            read.hash == hash
        };
        answers.iter().any(|(_, answers)| answers.iter().any(knows))
    }

    /// The gas of a call.
    ///
    /// # Errors
    /// [`EstimateError`]. `Reverts` only if each endpoint that answered says so.
    pub async fn estimate(&self, from: Address, payload: &TxPayload) -> Result<u64, EstimateError> {
        let (to, value, data) = payload.call();
        let call = RpcCall::Estimate { from, to, value, data };
        let mut reverts = None;
        let mut away = None;
        for member in &self.members {
            match member.ask_one(call.clone()).await {
                Some(Ok(RpcValue::Number(gas))) => return Ok(gas),
                Some(Err(RpcError::Said { code, message, data })) if fails(code, &message) => {
                    let words = data.filter(|data| !data.starts_with("0x")).unwrap_or(message);
                    reverts = Some(cut(&words));
                }
                Some(Err(error)) => away = Some(cut(&error.to_string())),
                Some(Ok(_)) | None => {}
            }
        }
        match (reverts, away) {
            (Some(words), None) => Err(EstimateError::Reverts(words)),
            (_, Some(words)) => Err(EstimateError::Away(words)),
            (None, None) => Err(EstimateError::Away("no endpoint".to_owned())),
        }
    }

    /// The balance of an account, wei or units of a token: the smallest that an endpoint says.
    pub async fn balance(&self, account: Address, token: Option<Address>) -> Option<U256> {
        let call = match token {
            None => RpcCall::Balance(account),
            Some(contract) => RpcCall::TokenBalance { contract, account },
        };
        let answers = self.ask_all(&[call]).await.into_iter();
        let amounts = answers.filter_map(|(_, answers)| match answers.first() {
            Some(Ok(RpcValue::Amount(amount))) => Some(*amount),
            _ => None,
        });
        amounts.min()
    }

    /// The length of an account's code, bytes: the longest that an endpoint says, since an endpoint
    /// that lags does not have new code.
    pub async fn code_length(&self, account: Address) -> Option<u64> {
        let answers = self.ask_all(&[RpcCall::CodeLength(account)]).await.into_iter();
        let lengths = answers.filter_map(|(_, answers)| match answers.first() {
            Some(Ok(RpcValue::Number(length))) => Some(*length),
            _ => None,
        });
        lengths.max()
    }

    /// The chain's number and the hash of its block 0, equal at all endpoints that answered, at
    /// least a quorum. An endpoint that answers later is compared before its first head is used.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub async fn identity(&self) -> Result<(u64, B256), IdentityError> {
        let calls = [RpcCall::ChainId, RpcCall::Block(BlockAt::Number(0))];
        let mut known: Vec<(&str, u64, B256)> = Vec::new();
        for (member, answers) in self.ask_all(&calls).await {
            if let [Ok(RpcValue::Number(id)), Ok(RpcValue::Block(Some(block)))] = answers.as_slice()
            {
                known.push((member.endpoint.name(), *id, block.at.hash));
            }
        }
        let Some(((first, id, hash), others)) =
            known.split_first().filter(|_| known.len() >= self.quorum)
        else {
            return Err(IdentityError::Away(known.len()));
        };
        match others.iter().find(|(_, other, block)| (other, block) != (id, hash)) {
            Some((name, ..)) => Err(IdentityError::Differ((*first).to_owned(), (*name).to_owned())),
            None => {
                *self.rules.genesis.lock() = Some(*hash);
                Ok((*id, *hash))
            }
        }
    }

    /// Asks every endpoint at once. Those that are left out are not in the answers.
    async fn ask_all(&self, calls: &[RpcCall]) -> Vec<(&Arc<Member<E>>, Vec<Answer>)> {
        let members = self.members.iter();
        let asked = members
            .map(|member| async move { member.ask(calls).await.map(|answers| (member, answers)) });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// The endpoints of a look, each with its chain. They take turns by the height of the head, so
    /// that one that answers wrongly holds nothing up for long.
    fn turn<'a>(&'a self, look: &'a Look) -> Vec<(&'a Arc<Member<E>>, &'a Seen)> {
        let pairs = self.members.iter().zip(&look.seen);
        let mut turn: Vec<_> =
            pairs.filter_map(|(it, seen)| Some((it, &**seen.as_ref()?))).collect();
        let head = look.head().map_or(0, |head| head.at.number);
        if let Ok(length @ 1..) = u64::try_from(turn.len()) {
            turn.rotate_left(usize::try_from(head % length).unwrap_or(0));
        }
        turn
    }
}

/// The answers of one endpoint to raw transactions; empty: it is set aside.
async fn send_to<E: Endpoint>(member: &Member<E>, raws: &[(B256, Bytes)]) -> Vec<EndpointAnswer> {
    if member.is_liar() {
        return Vec::new();
    }
    let mut answers = Vec::with_capacity(raws.len());
    for batch in raws.chunks(SEND_BATCH) {
        let calls: Vec<RpcCall> = batch.iter().map(|(_, raw)| RpcCall::Send(raw.clone())).collect();
        for ((hash, _), answer) in batch.iter().zip(member.call(&calls).await) {
            let (class, text) = classify(member, *hash, answer);
            answers.push(EndpointAnswer { endpoint: cut(member.endpoint.name()), class, text });
        }
    }
    answers
}

/// The class and the words of an answer to a send.
fn classify<E: Endpoint>(member: &Member<E>, hash: B256, answer: Answer) -> (SendClass, String) {
    match answer {
        Ok(RpcValue::Hash(told)) if told == hash => (SendClass::Accepted, String::new()),
        Ok(RpcValue::Hash(other)) => {
            let endpoint = member.endpoint.name();
            tracing::error!(endpoint, sent = %hash, %other, "rpc_mismatch: the endpoint answered the hash of another transaction and is set aside");
            metrics::counter!("ubscore_rpc_mismatch_total", "endpoint" => endpoint.to_owned())
                .increment(1);
            member.set_aside();
            (SendClass::Unknown, format!("another hash: {other}"))
        }
        Ok(_) => (SendClass::Unknown, "an answer to another call".to_owned()),
        Err(RpcError::Said { message, data, .. }) => {
            let class = SendClass::of_error(&message, data.as_deref());
            let words = match data {
                Some(data) if !message.contains(&data) => format!("{message}: {data}"),
                _ => message,
            };
            (class, cut(&words))
        }
        Err(RpcError::Unknown(words)) => (SendClass::Unknown, cut(&words)),
    }
}

/// The counts of signers at a block at one endpoint: by the block's hash, or by its number if the
/// endpoint refuses hashes.
async fn counts_of<E: Endpoint>(
    member: &Arc<Member<E>>,
    at: BlockRef,
    signers: &[Address],
) -> Vec<Option<u64>> {
    let by = |block| signers.iter().map(move |signer| RpcCall::Count(*signer, block));
    let number = |answer: &Answer| match answer {
        Ok(RpcValue::Number(count)) => Some(*count),
        _ => None,
    };
    let lacks_hashes = member.chain.lock().lacks_hashes;
    if !lacks_hashes {
        let calls: Vec<RpcCall> = by(BlockAt::Hash(at.hash)).collect();
        let Some(answers) = member.ask(&calls).await else { return vec![None; signers.len()] };
        let refuses = |answer: &Answer| {
            let Err(RpcError::Said { code, message, .. }) = answer else { return false };
            matches!(code, -32602..=-32600) && !message.contains("canonical")
        };
        if !answers.first().is_some_and(refuses) {
            return answers.iter().map(number).collect();
        }
        member.chain.lock().lacks_hashes = true;
    }
    let calls: Vec<RpcCall> = by(BlockAt::Number(at.number)).collect();
    let answers = member.ask(&calls).await.unwrap_or_default();
    let mut counts: Vec<Option<u64>> = answers.iter().map(number).collect();
    counts.resize(signers.len(), None);
    counts
}

/// Whether an error of an estimate is about the call itself, and not about the endpoint, the
/// account's balance or the block.
fn fails(code: i64, message: &str) -> bool {
    let message = message.to_lowercase();
    let words = ["revert", "always failing", "invalid opcode", "invalid jump", "stack underflow"];
    code == 3 || words.iter().any(|word| message.contains(word))
}

/// The first bytes of a text, up to a character's border, without control characters: PostgreSQL
/// refuses a NUL in a text, and one endpoint's words must not keep the store from an answer.
fn cut(text: &str) -> String {
    let text: String = text.chars().filter(|it| !it.is_control()).collect();
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests;
