//! Many signers behind one endpoint with latency and few calls under way.

use chain::state::TxState;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::*;
use crate::model::chain::{ModelChain, ModelEndpoint};
use crate::signer::keystore::Keystore;

const SIGNERS: u8 = 64;
/// Payments of each signer, one behind the other.
const PAYMENTS: usize = 8;

/// An endpoint with so many calls under way as its settings say. It counts the requests.
#[derive(Clone)]
struct Narrow {
    inner: ModelEndpoint,
    places: Arc<Semaphore>,
    /// Of sends, and of questions.
    requests: Arc<Mutex<(usize, usize)>>,
}

impl Endpoint for Narrow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Result<RpcValue, RpcError>> {
        let _place = self.places.acquire().await;
        match calls {
            [RpcCall::Send(_), ..] => self.requests.lock().0 += 1,
            _ => self.requests.lock().1 += 1,
        }
        self.inner.calls(calls).await
    }
}

/// Goal: the questions of many signers take less of an endpoint than their sends. Story: they took
/// nearly all of it, and a node with 64 signers made 16 payments a second. Method: each signer pays
/// the next one once an endpoint has acknowledged the last, with a block each second.
#[tokio::test(start_paused = true)]
async fn questions_of_many_signers_take_less_than_their_sends() {
    let options = crate::model::options();
    let database = ModelDatabase::new(options.lease_duration, options.lease_skew);
    let chain = ModelChain::new(options.chain_id, 1);
    let secrets: Vec<[u8; 32]> = (1..=SIGNERS).map(|number| [number; 32]).collect();
    let keys = Keystore::of_keys(&secrets).expect("keys");
    let signers = keys.addresses();
    for signer in &signers {
        database.add_signer(*signer, 0);
        chain.fund(*signer, U256::from(10).pow(U256::from(24)));
    }
    chain.mine(1);
    chain.set_latency(0, Duration::from_millis(50));
    let endpoint = Narrow {
        inner: chain.endpoints().remove(0),
        places: Arc::new(Semaphore::new(options.calls_in_flight_max)),
        requests: Arc::default(),
    };
    let requests = Arc::clone(&endpoint.requests);
    let node = Running::start(&database, "node", vec![endpoint], keys, options);
    node.store.delay(Duration::from_millis(2));
    let mining = chain.clone();
    let blocks = tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            mining.mine(1);
        }
    });
    let clients = signers.iter().map(|signer| {
        let (desks, database) = (desks(std::slice::from_ref(&node)), &database);
        async move {
            for number in 0..PAYMENTS {
                let id = post(&desks, request(*signer, &number.to_string())).await.id;
                let is_sent = || database.row(id).is_some_and(|row| row.state == TxState::Tracking);
                eventually("sent", is_sent).await;
            }
        }
    });
    join_all(clients).await;
    let (sends, questions) = *requests.lock();
    assert!(questions < sends, "{questions} questions, {sends} sends");
    blocks.abort();
    database.check();
}
