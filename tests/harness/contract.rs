//! Contracts of the tests: each is written by hand, and small enough to be read.
//!
//! A token has `mint(address,uint256)`, open to all, `transfer(address,uint256)` and
//! `balanceOf(address)`. A balance stands in the storage slot of its address.

use alloy_primitives::{Address, B256, U256, b256, hex};

use super::chain::Chain;

/// The first topic of `Transfer(address,address,uint256)`.
pub(crate) const TRANSFER: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A token that pays: it moves the amount, emits `Transfer(signer, payee, amount)` and returns
/// true. It reverts if the signer has less.
pub(crate) const TOKEN: &[u8] = &hex!(
    // PUSH0 CALLDATALOAD PUSH1 e0 SHR                         the selector
    "5f3560e01c"
    // DUP1 PUSH4 a9059cbb EQ PUSH1 transfer JUMPI             transfer(address,uint256)
    "8063a9059cbb14603f57"
    // DUP1 PUSH4 70a08231 EQ PUSH1 balance JUMPI              balanceOf(address)
    "806370a0823114602657"
    // PUSH4 40c10f19 EQ PUSH1 mint JUMPI                      mint(address,uint256)
    "6340c10f1914603157"
    // fail: JUMPDEST PUSH0 PUSH0 REVERT
    "5b5f5ffd"
    // balance: JUMPDEST PUSH1 04 CALLDATALOAD SLOAD PUSH0 MSTORE PUSH1 20 PUSH0 RETURN
    "5b600435545f5260205ff3"
    // mint: JUMPDEST PUSH1 24 CALLDATALOAD PUSH1 04 CALLDATALOAD
    // DUP1 SLOAD DUP3 ADD SWAP1 SSTORE STOP                   payee += amount
    "5b60243560043580548201905500"
    // transfer: JUMPDEST PUSH1 24 CALLDATALOAD CALLER SLOAD   amount, signer's balance
    "5b6024353354"
    // DUP2 DUP2 LT PUSH1 fail JUMPI                           balance < amount
    "818110602257"
    // DUP2 SWAP1 SUB CALLER SSTORE                            signer -= amount
    "8190033355"
    // PUSH1 04 CALLDATALOAD DUP1 SLOAD DUP3 ADD DUP2 SSTORE   payee += amount
    "600435805482018155"
    // SWAP1 PUSH0 MSTORE                                      amount is the event's data
    "905f52"
    // CALLER PUSH32 TRANSFER PUSH1 20 PUSH0 LOG3              Transfer(signer, payee, amount)
    "337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60205fa3"
    // PUSH1 01 PUSH0 MSTORE PUSH1 20 PUSH0 RETURN             true
    "60015f5260205ff3"
);

/// [`TOKEN`] that keeps a hundredth: the payee gets less, and the event has the smaller amount.
pub(crate) const FEE_TOKEN: &[u8] = &hex!(
    // As in TOKEN, up to the signer's debit.
    "5f3560e01c8063a9059cbb14603f57806370a08231146026576340c10f19146031575b5f5ffd"
    "5b600435545f5260205ff35b60243560043580548201905500"
    "5b60243533548181106022578190033355"
    // DUP1 PUSH1 64 SWAP1 DIV SWAP1 SUB                       amount -= amount / 100
    "80606490049003"
    // As in TOKEN, from the payee's credit.
    "600435805482018155905f52"
    "337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60205fa3"
    "60015f5260205ff3"
);

/// A token that does not pay: it answers false to each call, with status 1 and without an event.
/// Each account has 2^32 units of it.
pub(crate) const FALSE_TOKEN: &[u8] = &hex!(
    // PUSH0 CALLDATALOAD PUSH1 e0 SHR PUSH4 70a08231 EQ       whether it is balanceOf(address)
    "5f3560e01c6370a0823114"
    // PUSH1 20 SHL PUSH0 MSTORE PUSH1 20 PUSH0 RETURN         2^32, or 0
    "60201b5f5260205ff3"
);

/// A token that moves nothing, emits `Transfer(payee, payee, amount)`, which is another's event,
/// and returns true.
pub(crate) const OTHER_TOKEN: &[u8] = &hex!(
    // PUSH1 24 CALLDATALOAD PUSH0 MSTORE                      amount is the event's data
    "6024355f52"
    // PUSH1 04 CALLDATALOAD DUP1 PUSH32 TRANSFER PUSH1 20 PUSH0 LOG3
    "600435807fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60205fa3"
    // PUSH1 01 PUSH0 MSTORE PUSH1 20 PUSH0 RETURN             true
    "60015f5260205ff3"
);

/// A token that emits `Transfer(signer, payee, amount)` twice, and returns true.
pub(crate) const TWICE_TOKEN: &[u8] = &hex!(
    // PUSH1 24 CALLDATALOAD PUSH0 MSTORE                      amount is the event's data
    "6024355f52"
    // PUSH1 04 CALLDATALOAD CALLER PUSH32 TRANSFER PUSH1 20 PUSH0 LOG3, two times
    "600435337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60205fa3"
    "600435337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60205fa3"
    // PUSH1 01 PUSH0 MSTORE PUSH1 20 PUSH0 RETURN             true
    "60015f5260205ff3"
);

/// A contract that reverts at each call.
pub(crate) const REVERTING: &[u8] = &hex!(
    // PUSH0 PUSH0 REVERT
    "5f5ffd"
);

/// The data of `transfer(payee, amount)`.
pub(crate) fn transfer_data(payee: Address, amount: u64) -> Vec<u8> {
    call_data(hex!("a9059cbb"), payee, amount)
}

/// The data of `mint(owner, amount)`.
pub(crate) fn mint_data(owner: Address, amount: u64) -> Vec<u8> {
    call_data(hex!("40c10f19"), owner, amount)
}

/// A token's balance of an account at the head.
pub(crate) fn token_balance(chain: &Chain, token: Address, owner: Address) -> U256 {
    let data = [hex!("70a08231").as_slice(), owner.into_word().as_slice()].concat();
    U256::from_be_slice(&chain.view(token, &data).expect("a balance"))
}

fn call_data(selector: [u8; 4], account: Address, amount: u64) -> Vec<u8> {
    let amount: [u8; 32] = U256::from(amount).to_be_bytes();
    [&selector, account.into_word().as_slice(), &amount].concat()
}
