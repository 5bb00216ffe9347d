//! The checks of a request before it gets a nonce, so that a refusal costs none.

use alloy_primitives::{Address, U256};
use chain::fee::{GasCaps, GasMarket};
use chain::payload::{TRANSFER_GAS, TxPayload};
use chain::tx::NewTx;

use crate::open_rows::{Hold, OpenCost};
use crate::policy;
use crate::refusal::TxRefusal;
use crate::rpc::Endpoint;
use crate::rpc::pool::EstimateError;
use crate::tools::Tools;

/// A request that may get a nonce.
pub struct Prepared {
    /// Its gas limit.
    pub gas: u64,
    /// Its cost. It is held until the request has its row, and then dropped.
    pub hold: Hold,
}

/// Prepares a request: its signer's policy, its gas limit, and whether its signer can pay for it
/// beside all rows that are open.
///
/// # Errors
/// [`TxRefusal`]: `is_for_good` tells whether a repeat can succeed. The funds are checked before
/// the call is tried: a call without its funds fails too, and that is not for good.
pub async fn prepare<S, E: Endpoint, K>(
    tools: &Tools<S, E, K>,
    request: &NewTx,
) -> Result<Prepared, TxRefusal> {
    let (signer, payload) = (request.signer, &request.payload);
    let policy = tools.policies.get(&signer);
    let fits = |()| policy.map_or(Ok(()), |policy| policy::fits_an_hour(policy, payload));
    policy::allow(policy, payload)
        .and_then(fits)
        .map_err(|error| TxRefusal::SignerPolicy(error.to_string()))?;
    let funds = Funds::read(tools, signer, payload).await?;
    let value = OpenCost::new(payload.value, token(payload));
    drop(funds.hold(tools, signer, value)?);
    let gas = gas_limit(tools, signer, payload).await?;
    let market = tools.market().await.ok_or_else(|| away("no endpoint tells the fees"))?;
    let max_fee = assumed_fee(Some(market), &tools.options.caps);
    let hold = funds.hold(tools, signer, value.with_gas(gas, max_fee))?;
    Ok(Prepared { gas, hold })
}

/// The price at which a row without an attempt is counted, wei per gas: today's, at most the cap.
pub fn assumed_fee(market: Option<GasMarket>, caps: &GasCaps) -> u128 {
    // A market above the cap is no reason to refuse: the row waits, and costs at most the cap.
    let price = market.and_then(|market| market.price(caps));
    price.map_or(caps.max_fee, |price| price.max_fee.min(caps.max_fee))
}

/// The balances of a signer at the head.
struct Funds {
    native: U256,
    token: U256,
}

impl Funds {
    async fn read<S, E: Endpoint, K>(
        tools: &Tools<S, E, K>,
        signer: Address,
        payload: &TxPayload,
    ) -> Result<Funds, TxRefusal> {
        let unknown = || away("no endpoint tells the signer's balance");
        let native = tools.balance(signer, None).await.ok_or_else(unknown)?;
        let token = match token(payload) {
            Some((contract, _)) => {
                // `balanceOf` of an account without code answers nothing, at every endpoint.
                has_code(tools, contract).await?;
                match tools.balance(signer, Some(contract)).await {
                    Some(units) => units,
                    None => {
                        estimate(tools, signer, &TxPayload::of_balance(contract, signer)).await?;
                        return Err(unknown());
                    }
                }
            }
            None => U256::ZERO,
        };
        Ok(Funds { native, token })
    }

    fn hold<S, E, K>(
        &self,
        tools: &Tools<S, E, K>,
        signer: Address,
        cost: OpenCost,
    ) -> Result<Hold, TxRefusal> {
        let held = tools.open_rows.hold(signer, cost, self.native, self.token);
        held.ok_or(TxRefusal::Unfunded)
    }
}

fn token(payload: &TxPayload) -> Option<(Address, U256)> {
    payload.token.as_ref().map(|token| (token.contract, token.amount))
}

async fn has_code<S, E: Endpoint, K>(
    tools: &Tools<S, E, K>,
    contract: Address,
) -> Result<(), TxRefusal> {
    match tools.code_length(contract).await {
        None => Err(away("no endpoint tells the contract's code")),
        Some(0) => Err(TxRefusal::WouldRevert("the token's contract has no code".to_owned())),
        Some(_) => Ok(()),
    }
}

/// The gas that a call needs. One that reverts at each endpoint does so for good.
async fn estimate<S, E: Endpoint, K>(
    tools: &Tools<S, E, K>,
    signer: Address,
    payload: &TxPayload,
) -> Result<u64, TxRefusal> {
    tools.pool.estimate(signer, payload).await.map_err(|error| match error {
        EstimateError::Reverts(reason) => TxRefusal::WouldRevert(reason),
        EstimateError::Away(reason) => TxRefusal::Away(reason),
    })
}

/// The gas limit of a payload: the client's, the estimate with its margin, or that of a plain
/// transfer.
async fn gas_limit<S, E: Endpoint, K>(
    tools: &Tools<S, E, K>,
    signer: Address,
    payload: &TxPayload,
) -> Result<u64, TxRefusal> {
    let most = tools.options.gas_max;
    if payload.gas.is_some_and(|gas| gas > most) {
        return Err(TxRefusal::WouldRevert(format!("a transaction may use at most {most} gas")));
    }
    if payload.token.is_none() && payload.data.is_empty() {
        match tools.code_length(payload.to).await {
            None => return Err(away("no endpoint tells the payee's code")),
            Some(0) => return Ok(payload.gas.unwrap_or(TRANSFER_GAS)),
            Some(_) => {}
        }
    }
    let needed = estimate(tools, signer, payload).await?;
    if needed > payload.gas.unwrap_or(most) {
        return Err(TxRefusal::WouldRevert(format!("it needs {needed} gas")));
    }
    let margin = u128::from(needed) * u128::from(tools.options.gas_margin_percent) / 100;
    let wanted = u64::try_from(margin).unwrap_or(most).clamp(needed, most);
    Ok(payload.gas.unwrap_or(wanted))
}

fn away(reason: &str) -> TxRefusal {
    TxRefusal::Away(reason.to_owned())
}

#[cfg(test)]
mod tests;
