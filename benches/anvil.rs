//! The chain of a bench: a real node that mines on demand, and calls of it.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, thread};

use alloy_primitives::{Address, B256, hex};
use anyhow::{Context, ensure};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use ubscore::commands::load::client::Client;

/// The number of the chain.
pub(crate) const CHAIN_ID: u64 = 31_337;
/// Room for a thousand payments and more in each block.
const GAS_LIMIT: u64 = 1_000_000_000;
/// The payee of every payment. It has no code.
pub(crate) const PAYEE: Address = Address::repeat_byte(0xb7);
/// The prices of a transaction that this bench signs, wei.
const MAX_FEE: u64 = 100_000_000_000;
const MAX_TIP: u64 = 1_000_000_000;

/// A chain's node, ended with this value.
pub(crate) struct Anvil {
    process: Child,
    address: String,
    /// Accounts with coins, and their keys.
    pub(crate) accounts: Vec<(Address, B256)>,
}

impl Drop for Anvil {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The program that `make need-anvil` installs.
fn program() -> anyhow::Result<PathBuf> {
    let fixed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/anvil/anvil");
    let path = env::var_os("UBSCORE_ANVIL").map_or_else(fixed, PathBuf::from);
    ensure!(path.is_file(), "anvil is missing at {}; run: make need-anvil", path.display());
    Ok(path)
}

impl Anvil {
    /// Starts an empty chain with so many accounts. `home`: for its files.
    pub(crate) fn start(home: &Path, accounts: usize) -> anyhow::Result<Anvil> {
        let mut process = Command::new(program()?)
            .args(["--host", "127.0.0.1", "--port", "0", "--no-mining", "--balance", "1000000"])
            .args(["--accounts", &accounts.to_string(), "--chain-id", &CHAIN_ID.to_string()])
            .args(["--gas-limit", &GAS_LIMIT.to_string()])
            .env("HOME", home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start anvil")?;
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let (mut addresses, mut keys): (Vec<Address>, Vec<B256>) = (Vec::new(), Vec::new());
        let mut line = String::new();
        let address = loop {
            line.clear();
            ensure!(output.read_line(&mut line)? > 0, "anvil ended");
            if let Some(address) = line.trim().strip_prefix("Listening on ") {
                break address.to_owned();
            }
            // "(0) 0x…", first all addresses, and then all keys.
            let Some(text) = line.split_whitespace().find(|word| word.starts_with("0x")) else {
                continue;
            };
            match text.len() {
                42 => addresses.push(text.parse()?),
                66 => keys.push(text.parse()?),
                _ => {}
            }
        };
        ensure!(addresses.len() == accounts && keys.len() == accounts, "{accounts} accounts");
        // It names each call there; a full pipe would stop it.
        thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        let accounts = addresses.into_iter().zip(keys).collect();
        Ok(Anvil { process, address, accounts })
    }

    /// Its `http://` URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its address and port.
    pub(crate) fn host(&self) -> &str {
        &self.address
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Rpc> {
        Ok(Rpc(Client::connect(&self.address).await?))
    }
}

/// A connection to a node, one call at a time.
pub(crate) struct Rpc(Client);

impl Rpc {
    /// Makes a call: its result.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.post(body.to_string()).await.with_context(|| method.to_owned())
    }

    async fn post(&mut self, body: String) -> anyhow::Result<Value> {
        let (status, body) = self.0.send(Method::POST, "/", "", body).await?;
        ensure!(status == StatusCode::OK, "{status}: {body}");
        let mut answer: Value = serde_json::from_str(&body)?;
        ensure!(answer.get("error").is_none(), "{body}");
        Ok(answer["result"].take())
    }

    /// Mines blocks; the first of them takes all of the pool's transactions.
    pub(crate) async fn mine(&mut self, blocks: u64) -> anyhow::Result<()> {
        self.ask("anvil_mine", json!([format!("{blocks:#x}")])).await.map(drop)
    }

    /// The hash of the block at a height, or under a tag.
    pub(crate) async fn block_hash(&mut self, height: &str) -> anyhow::Result<String> {
        let block = self.ask("eth_getBlockByNumber", json!([height, false])).await?;
        Ok(block["hash"].as_str().context("a hash")?.to_owned())
    }

    /// The height of the head.
    pub(crate) async fn height(&mut self) -> anyhow::Result<u64> {
        let height = self.ask("eth_blockNumber", json!([])).await?;
        let digits = height.as_str().and_then(|text| text.strip_prefix("0x"));
        Ok(u64::from_str_radix(digits.context("a height")?, 16)?)
    }

    /// Signs payments of an account with coins, with the nonces from `first` on: requests that send
    /// them.
    pub(crate) async fn sends(
        &mut self,
        from: Address,
        first: u64,
        count: u64,
    ) -> anyhow::Result<Vec<String>> {
        let mut sends = Vec::new();
        for nonce in first..first + count {
            let fields = json!({
                "type": "0x2", "chainId": hex_of(CHAIN_ID), "from": from.to_string(),
                "to": PAYEE.to_string(), "nonce": hex_of(nonce), "value": "0x1", "gas": "0x5208",
                "maxFeePerGas": hex_of(MAX_FEE), "maxPriorityFeePerGas": hex_of(MAX_TIP),
            });
            let raw = self.ask("eth_signTransaction", json!([fields])).await?;
            let body = json!({
                "jsonrpc": "2.0", "id": nonce, "method": "eth_sendRawTransaction", "params": [raw],
            });
            sends.push(body.to_string());
        }
        Ok(sends)
    }

    /// Sends ready requests, one at a time.
    pub(crate) async fn send_all(&mut self, sends: Vec<String>) -> anyhow::Result<()> {
        for send in sends {
            self.post(send).await?;
        }
        Ok(())
    }

    /// Replaces the last blocks by as many others with these raw transactions, each with the number
    /// of its block, from the lowest one on.
    pub(crate) async fn reorg(
        &mut self,
        depth: u64,
        with: &[(Vec<u8>, u64)],
    ) -> anyhow::Result<()> {
        let pairs: Vec<Value> =
            with.iter().map(|(raw, block)| json!([hex::encode_prefixed(raw), block])).collect();
        self.ask("anvil_reorg", json!([depth, pairs])).await.map(drop)
    }
}

fn hex_of(number: u64) -> String {
    format!("{number:#x}")
}
