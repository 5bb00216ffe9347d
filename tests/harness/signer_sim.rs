//! A signer over HTTPS that answers `eth_signTransaction`, and lies on demand.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use alloy_primitives::{Address, B256, Signature, U256, hex};
use chain::fee::GasPrice;
use k256::ecdsa::signature::hazmat::RandomizedPrehashSigner;
use k256::ecdsa::{self, SigningKey};
use rsa::rand_core::OsRng;
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use txm::signer::{Unsigned, codec};

use super::{Certificate, Site, hex_of, number, read_request, text};

/// The manner of a signer's answers.
#[derive(Clone)]
pub(crate) enum Manner {
    /// It signs each wish, each time with another signature and so with another hash.
    Honest,
    /// It signs the wish as this changes it.
    Changes(fn(&mut Unsigned)),
    /// It signs with another account's key.
    OtherKey,
    /// It answers this as the result.
    Says(Value),
    /// It refuses.
    Refuses,
    /// It answers with another id.
    OtherId,
    /// It answers this status.
    Status(u16),
    /// It takes the request, and closes.
    Closes,
    /// It takes the request, and never answers.
    Silent,
}

struct State {
    manner: Manner,
    asked: usize,
    signed: Vec<Vec<u8>>,
}

/// A signer on loopback. It answers only clients that show its client certificate.
pub(crate) struct SignerSim {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: Certificate,
    client: Certificate,
}

impl SignerSim {
    /// A signer with this key. It is [`Manner::Honest`] until [`SignerSim::behaves`].
    pub(crate) fn start(site: &Site, key: B256) -> SignerSim {
        let (server, client) = (Certificate::issued(site), Certificate::issued(site));
        let config = Arc::new(config(&server, &client.issuer));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State { manner: Manner::Honest, asked: 0, signed: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let inner = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (config, state) = (Arc::clone(&config), Arc::clone(&inner));
                // A node may go at any moment.
                thread::spawn(move || drop(serve(stream, config, &state, key)));
            }
        });
        SignerSim { address, state, server, client }
    }

    /// The settings of a node that asks it, names behind `UBSCORE__TXM__`, for this address.
    pub(crate) fn settings(&self, address: Address) -> [(&'static str, String); 5] {
        let shown = |path: &Path| path.to_str().expect("text").to_owned();
        [
            ("SIGNERS__REMOTE_URL", format!("https://{}", self.address)),
            ("SIGNERS__REMOTE_ADDRESSES", hex_of(address)),
            ("SIGNERS__REMOTE_CA_FILE", shown(&self.server.issuer)),
            ("SIGNERS__REMOTE_CERTIFICATE_FILE", shown(&self.client.certificate)),
            ("SIGNERS__REMOTE_KEY_FILE", shown(&self.client.key)),
        ]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in a signer")
    }

    /// Answers in this manner from now on.
    pub(crate) fn behaves(&self, manner: Manner) {
        self.state().manner = manner;
    }

    /// The requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.state().asked
    }

    /// Every raw transaction that it has signed, in order.
    pub(crate) fn signed(&self) -> Vec<Vec<u8>> {
        self.state().signed.clone()
    }
}

/// TLS with this certificate, for clients that this issuer knows.
fn config(own: &Certificate, clients: &Path) -> ServerConfig {
    let read = |path: &PathBuf| CertificateDer::from_pem_file(path).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(read(&clients.to_owned())).expect("a certificate");
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let key = PrivateKeyDer::from_pem_file(&own.key).expect("a key");
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(vec![read(&own.certificate)], key)
        .expect("a certificate")
}

/// The requests of one connection, until either end closes it.
fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    state: &Mutex<State>,
    key: B256,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut tls = StreamOwned::new(tls, stream);
    loop {
        let (_, body) = read_request(&mut tls)?;
        let request: Value = serde_json::from_slice(&body)?;
        let manner = {
            let mut state = state.lock().expect("no panic in a signer");
            state.asked += 1;
            state.manner.clone()
        };
        let signs = |wish: &Unsigned, key: B256| {
            let raw = sign(wish, key);
            state.lock().expect("no panic in a signer").signed.push(raw.clone());
            json!(hex::encode_prefixed(raw))
        };
        let id = &request["id"];
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        let mut wish = wish(&request["params"][0]);
        let (mut status, mut answer) = (200, Value::Null);
        match manner {
            Manner::Honest => answer = result(signs(&wish, key)),
            Manner::Changes(change) => {
                change(&mut wish);
                answer = result(signs(&wish, key));
            }
            Manner::OtherKey => answer = result(signs(&wish, B256::repeat_byte(0x11))),
            Manner::Says(value) => answer = result(value),
            Manner::Refuses => {
                let error = json!({"code": -32_000, "message": "not today"});
                answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
            }
            Manner::OtherId => {
                answer = result(signs(&wish, key));
                answer["id"] = json!("another");
            }
            Manner::Status(other) => status = other,
            Manner::Closes => return Ok(()),
            // Until the node gives up.
            Manner::Silent => return io::copy(&mut tls, &mut io::sink()).map(drop),
        }
        let answer = answer.to_string();
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        tls.write_all(&[head.as_bytes(), answer.as_bytes()].concat())?;
        tls.flush()?;
    }
}

/// The transaction that a node asks for, type 2.
fn wish(asked: &Value) -> Unsigned {
    let of = |name: &str| text(&asked[name]);
    let price = |name: &str| of(name).parse::<U256>().expect("a number").to::<u128>();
    Unsigned {
        chain_id: number(&asked["chainId"]),
        signer: of("from").parse().expect("an address"),
        nonce: number(&asked["nonce"]),
        to: of("to").parse().expect("an address"),
        value: of("value").parse().expect("a number"),
        data: hex::decode(of("data")).expect("hex").into(),
        gas: number(&asked["gas"]),
        price: GasPrice { max_fee: price("maxFeePerGas"), max_tip: price("maxPriorityFeePerGas") },
        is_legacy: false,
    }
}

/// The raw transaction, with a signature that no other one of the same wish has.
fn sign(wish: &Unsigned, key: B256) -> Vec<u8> {
    let key = SigningKey::from_slice(key.as_slice()).expect("a key");
    let hash = codec::signature_hash(wish);
    let signed: ecdsa::Signature =
        key.sign_prehash_with_rng(&mut OsRng, hash.as_slice()).expect("32 bytes");
    let signed = signed.normalize_s().unwrap_or(signed);
    let own = Address::from_private_key(&key);
    let of_parity = |is_odd| Signature::from_signature_and_parity(signed, is_odd);
    let is_own = |signature: &Signature| {
        signature.recover_address_from_prehash(&hash).is_ok_and(|found| found == own)
    };
    let signature = [false, true].map(of_parity).into_iter().find(is_own).expect("one of both");
    codec::encode(wish, signature).to_vec()
}
