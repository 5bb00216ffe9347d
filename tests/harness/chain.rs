//! A real node with a chain of its own, and each thing that a test does to it.
//!
//! `docs/chain-node.md` compares it with other nodes.

use std::env;
use std::fmt::LowerHex;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use alloy_primitives::{Address, B256, U256, address, hex, keccak256};
use serde_json::{Value, json};

use super::{PATIENCE, run_directory, text};

/// The chain id of every node here.
pub(crate) const CHAIN_ID: u64 = 31_337;
/// The distance from `latest` to `safe`, and from `safe` to `finalized`, blocks.
pub(crate) const SLOTS_IN_AN_EPOCH: u64 = 2;
/// The base fee of a node's first block, wei per gas. It falls by an eighth with each empty block.
pub(crate) const FIRST_BASE_FEE: u128 = 1_000_000_000;
/// The gas of a plain payment.
pub(crate) const PAYMENT_GAS: u64 = 21_000;
/// Gas that is enough for a call of each contract here.
pub(crate) const CALL_GAS: u64 = 100_000;

/// Accounts that have 10,000 coins at the start, from the mnemonic `test test … junk`. The last one
/// deploys contracts; [`Chain::sign`] signs for each.
pub(crate) const ACCOUNTS: [Address; 10] = [
    address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
    address!("70997970C51812dc3A010C7d01b50e0d17dc79C8"),
    address!("3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"),
    address!("90F79bf6EB2c4f870365E785982E1f101E93b906"),
    address!("15d34AAf54267DB7D7c367839AAf71A00a2C6A65"),
    address!("9965507D1a55bcC2695C58ba16FB37d819B0A4dc"),
    address!("976EA74026E726554dB657fA54763abd0C3a0aa9"),
    address!("14dC79964da2C08b23698B3D3cc7Ca32193d9955"),
    address!("23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f"),
    DEPLOYER,
];
/// The account that deploys contracts.
const DEPLOYER: Address = address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720");

/// Their private keys, in the same order. They are public: every node of this kind prints them.
pub(crate) const KEYS: [B256; 10] = [
    B256::new(hex!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")),
    B256::new(hex!("59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d")),
    B256::new(hex!("5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a")),
    B256::new(hex!("7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6")),
    B256::new(hex!("47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a")),
    B256::new(hex!("8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba")),
    B256::new(hex!("92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e")),
    B256::new(hex!("4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356")),
    B256::new(hex!("dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97")),
    B256::new(hex!("2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6")),
];

/// The longest answer that is read, bytes: far above each real one.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The beginning of the line with the address.
const LISTENING: &str = "Listening on ";

/// The error object of an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct NodeError {
    /// JSON-RPC's number.
    pub(crate) code: i64,
    /// The text that classes of answers are decided by.
    pub(crate) message: String,
}

/// A client of one JSON-RPC address.
#[derive(Clone)]
pub(crate) struct Rpc {
    url: String,
    agent: ureq::Agent,
}

impl Rpc {
    /// A client of `url`. It follows no redirect.
    pub(crate) fn new(url: &str) -> Rpc {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .max_redirects(0)
            .max_idle_connections_per_host(64)
            .http_status_as_error(false)
            .build();
        Rpc { url: url.to_owned(), agent: agent.into() }
    }

    /// Posts a body as it is: the status of the answer, and its body.
    ///
    /// # Errors
    /// No whole answer came.
    pub(crate) fn post(&self, body: &[u8]) -> Result<(u16, Vec<u8>), ureq::Error> {
        let request = self.agent.post(&self.url).header("Content-Type", "application/json");
        let mut answer = request.send(body)?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok((answer.status().as_u16(), body))
    }

    /// One call: its result, or the node's refusal.
    ///
    /// # Errors
    /// No whole answer came.
    pub(crate) fn try_call(
        &self,
        method: &str,
        params: Value,
    ) -> Result<Result<Value, NodeError>, ureq::Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let (status, answer) = self.post(body.to_string().as_bytes())?;
        let shown = String::from_utf8_lossy(&answer);
        assert_eq!(status, 200, "{method}: {shown}");
        let mut answer: Value =
            serde_json::from_slice(&answer).unwrap_or_else(|_| panic!("{method}: {shown}"));
        assert_eq!(answer["id"], id, "{method}: {answer}");
        if let Some(message) = answer["error"]["message"].as_str() {
            let code = answer["error"]["code"].as_i64().expect("a number");
            return Ok(Err(NodeError { code, message: message.to_owned() }));
        }
        Ok(Ok(answer["result"].take()))
    }

    /// One call that must get an answer: its result.
    ///
    /// # Errors
    /// The node's own refusal.
    pub(crate) fn call(&self, method: &str, params: Value) -> Result<Value, NodeError> {
        let answer = self.try_call(method, params);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }
}

/// A payment or a call of a contract, type 2, before its signature.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) nonce: u64,
    pub(crate) to: Address,
    /// Wei.
    pub(crate) value: U256,
    pub(crate) data: Vec<u8>,
    pub(crate) gas: u64,
    /// The highest price, and the part of it for the miner, wei per gas.
    pub(crate) fee_max: u128,
    pub(crate) tip: u128,
}

impl Draft {
    /// A payment in coins, with fees that any quiet node takes.
    pub(crate) fn payment(nonce: u64, to: Address, wei: u64) -> Draft {
        let (fee_max, tip) = (3 * FIRST_BASE_FEE, FIRST_BASE_FEE);
        let value = U256::from(wei);
        Draft { nonce, to, value, data: Vec::new(), gas: PAYMENT_GAS, fee_max, tip }
    }

    /// A call of a contract, without coins.
    pub(crate) fn to_contract(nonce: u64, contract: Address, data: Vec<u8>) -> Draft {
        Draft { data, gas: CALL_GAS, ..Draft::payment(nonce, contract, 0) }
    }

    /// The same with these fees, wei per gas.
    pub(crate) fn with_fees(self, fee_max: u128, tip: u128) -> Draft {
        Draft { fee_max, tip, ..self }
    }
}

/// A node, which ends with this value. Blocks are mined by [`Chain::mine`] alone.
pub(crate) struct Chain {
    process: Child,
    directory: PathBuf,
    rpc: Rpc,
}

impl Drop for Chain {
    fn drop(&mut self) {
        // It may have ended already.
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir_all(&self.directory).ok();
    }
}

/// The program that `make need-anvil` installs.
fn program() -> PathBuf {
    let fixed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/anvil/anvil");
    let path = env::var_os("UBSCORE_ANVIL").map_or_else(fixed, PathBuf::from);
    assert!(path.is_file(), "anvil is missing at {}; run: make need-anvil", path.display());
    path
}

impl Chain {
    /// The program of every node here.
    pub(crate) fn program() -> PathBuf {
        program()
    }

    /// A node with an empty chain: block 0, and [`ACCOUNTS`] with coins.
    pub(crate) fn start() -> Chain {
        Chain::start_with(&[])
    }

    fn start_with(arguments: &[&str]) -> Chain {
        let directory = run_directory("chain");
        fs::create_dir_all(&directory).expect("a directory");
        let mut process = Command::new(program())
            .args(["--host", "127.0.0.1", "--port", "0", "--no-mining"])
            .args(["--slots-in-an-epoch", &SLOTS_IN_AN_EPOCH.to_string()])
            .args(["--chain-id", &CHAIN_ID.to_string()])
            // The run's watcher also ends the process by this name.
            .arg("--cache-path")
            .arg(&directory)
            .args(arguments)
            .env("HOME", &directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("anvil");
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (mut said, mut line) = (String::new(), String::new());
        let address = loop {
            line.clear();
            assert!(output.read_line(&mut line).expect("text") > 0, "anvil ended: {said}");
            if let Some(address) = line.trim().strip_prefix(LISTENING) {
                break address.to_owned();
            }
            said += &line;
        };
        for (account, key) in ACCOUNTS.iter().zip(&KEYS) {
            let both = [account.to_string(), key.to_string()];
            assert!(both.iter().all(|text| said.contains(text)), "{account} is not in {said}");
        }
        // It names each call there; a full pipe would stop it.
        thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        Chain { process, directory, rpc: Rpc::new(&format!("http://{address}")) }
    }

    /// Another node with the same blocks. From here on each of the two mines its own; the second
    /// one's pool is empty.
    pub(crate) fn second(&self) -> Chain {
        let first = self.block(0).expect("block 0");
        // Or its block 0 would be another one.
        let begin = number(&first["timestamp"]).to_string();
        let second = Chain::start_with(&["--timestamp", &begin]);
        // With the states of all blocks: without them it could neither answer for an old one nor
        // reorganize.
        let state = self.ask("anvil_dumpState", json!([true]));
        let loaded = second.ask("anvil_loadState", json!([state]));
        assert_eq!(loaded, json!(true), "the state is taken");
        for height in [0, self.height()] {
            let hash = |chain: &Chain| chain.block_hash(height);
            assert_eq!(hash(&second), hash(self), "block {height}");
        }
        second
    }

    /// Its own address, without a proxy.
    pub(crate) fn url(&self) -> &str {
        &self.rpc.url
    }

    /// A client of it.
    pub(crate) fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// A call that must succeed.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.rpc.call(method, params);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Mines blocks; the first of them takes the pool's transactions.
    pub(crate) fn mine(&self, blocks: u64) {
        self.ask("anvil_mine", json!([hex_of(blocks)]));
    }

    /// Replaces the last `depth` blocks by as many others. The new ones hold only the raw
    /// transactions of `with`, each in the block with its number: 0 is the lowest new block. The
    /// pool gets none of the old ones back. A transaction that its block cannot take is left out.
    pub(crate) fn reorg(&self, depth: u64, with: &[(&[u8], u64)]) {
        let pairs: Vec<Value> =
            with.iter().map(|(raw, block)| json!([hex::encode_prefixed(raw), block])).collect();
        self.ask("anvil_reorg", json!([depth, pairs]));
    }

    /// Takes the last blocks away, with their transactions: a head that falls.
    pub(crate) fn rollback(&self, blocks: u64) {
        self.ask("anvil_rollback", json!([blocks]));
    }

    /// Takes a transaction out of the pool, with all later ones of its sender. Returns whether it
    /// was there.
    pub(crate) fn drop_transaction(&self, hash: B256) -> bool {
        !self.ask("anvil_dropTransaction", json!([hex_of(hash)])).is_null()
    }

    /// The base fee of the next block, wei per gas. Later ones follow from it.
    pub(crate) fn set_base_fee(&self, wei: u128) {
        self.ask("anvil_setNextBlockBaseFeePerGas", json!([hex_of(wei)]));
    }

    /// Sets an account's coins, wei.
    pub(crate) fn set_balance(&self, account: Address, wei: U256) {
        self.ask("anvil_setBalance", json!([hex_of(account), hex_of(wei)]));
    }

    /// An account's coins at the head, wei.
    pub(crate) fn balance(&self, account: Address) -> U256 {
        let balance = self.ask("eth_getBalance", json!([hex_of(account), "latest"]));
        text(&balance).parse().expect("a number")
    }

    /// The number of the head.
    pub(crate) fn height(&self) -> u64 {
        number(&self.ask("eth_blockNumber", json!([])))
    }

    /// A block with the hashes of its transactions, as the node answers it.
    pub(crate) fn block(&self, height: u64) -> Option<Value> {
        present(self.ask("eth_getBlockByNumber", json!([hex_of(height), false])))
    }

    /// The hash of a block that exists.
    pub(crate) fn block_hash(&self, height: u64) -> B256 {
        let block = self.block(height).unwrap_or_else(|| panic!("no block {height}"));
        hash(&block["hash"])
    }

    /// The number of the block behind a tag, such as `finalized`.
    pub(crate) fn tagged(&self, tag: &str) -> u64 {
        number(&self.ask("eth_getBlockByNumber", json!([tag, false]))["number"])
    }

    /// The transactions of an account that are mined at the head.
    pub(crate) fn nonce(&self, account: Address) -> u64 {
        number(&self.ask("eth_getTransactionCount", json!([hex_of(account), "latest"])))
    }

    /// The same with those in the pool that could be mined.
    pub(crate) fn pending_nonce(&self, account: Address) -> u64 {
        number(&self.ask("eth_getTransactionCount", json!([hex_of(account), "pending"])))
    }

    /// The receipt of a mined transaction.
    pub(crate) fn receipt(&self, hash: B256) -> Option<Value> {
        present(self.ask("eth_getTransactionReceipt", json!([hex_of(hash)])))
    }

    /// A transaction, mined or in the pool.
    pub(crate) fn transaction(&self, hash: B256) -> Option<Value> {
        present(self.ask("eth_getTransactionByHash", json!([hex_of(hash)])))
    }

    /// Signs for one of [`ACCOUNTS`]: the raw transaction.
    pub(crate) fn sign(&self, from: Address, draft: &Draft) -> Vec<u8> {
        let fields = json!({
            "type": "0x2", "chainId": hex_of(CHAIN_ID), "from": hex_of(from), "to": hex_of(draft.to),
            "nonce": hex_of(draft.nonce), "value": hex_of(draft.value), "gas": hex_of(draft.gas),
            "input": hex::encode_prefixed(&draft.data),
            "maxFeePerGas": hex_of(draft.fee_max), "maxPriorityFeePerGas": hex_of(draft.tip),
        });
        let raw = self.ask("eth_signTransaction", json!([fields]));
        hex::decode(text(&raw)).expect("hex")
    }

    /// Sends a raw transaction around every proxy: its hash.
    ///
    /// # Errors
    /// The node's refusal.
    pub(crate) fn send(&self, raw: &[u8]) -> Result<B256, NodeError> {
        let sent = self.rpc.call("eth_sendRawTransaction", json!([hex::encode_prefixed(raw)]))?;
        let hash = hash(&sent);
        assert_eq!(hash, keccak256(raw), "a hash is that of the bytes");
        Ok(hash)
    }

    /// Deploys a contract's code from [`DEPLOYER`] and mines one block: its address. A
    /// reorganization of that block takes the contract away.
    pub(crate) fn deploy(&self, code: &[u8]) -> Address {
        let length = u16::try_from(code.len()).expect("a small contract").to_be_bytes();
        // PUSH2 length DUP1 PUSH1 10 PUSH0 CODECOPY PUSH0 RETURN, then the code.
        let copy = [&hex!("61")[..], &length, &hex!("80600a5f395ff3")].concat();
        let input = hex::encode_prefixed([copy.as_slice(), code].concat());
        let sent = json!({"from": hex_of(DEPLOYER), "input": input, "gas": hex_of(1_000_000_u32)});
        let hash = hash(&self.ask("eth_sendTransaction", json!([sent])));
        self.mine(1);
        let receipt = self.receipt(hash).expect("mined");
        let address: Address = text(&receipt["contractAddress"]).parse().expect("an address");
        let there = self.ask("eth_getCode", json!([hex_of(address), "latest"]));
        assert_eq!(text(&there), hex::encode_prefixed(code), "the code of {address}");
        address
    }

    /// Calls a contract at the head, without a transaction: the returned bytes.
    ///
    /// # Errors
    /// The contract reverts.
    pub(crate) fn view(&self, contract: Address, data: &[u8]) -> Result<Vec<u8>, NodeError> {
        let call = json!({"to": hex_of(contract), "input": hex::encode_prefixed(data)});
        let answer = self.rpc.call("eth_call", json!([call, "latest"]))?;
        Ok(hex::decode(text(&answer)).expect("hex"))
    }
}

/// A quantity, an address or a hash as JSON-RPC writes it.
pub(crate) fn hex_of(value: impl LowerHex) -> String {
    format!("{value:#x}")
}

/// A quantity of JSON-RPC.
pub(crate) fn number(value: &Value) -> u64 {
    let digits = text(value).strip_prefix("0x").unwrap_or_else(|| panic!("{value}: no quantity"));
    u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("{value}: {error}"))
}

/// A hash of JSON-RPC.
pub(crate) fn hash(value: &Value) -> B256 {
    text(value).parse().unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn present(value: Value) -> Option<Value> {
    (!value.is_null()).then_some(value)
}
