//! A node in a process of its own, which may be paused, killed, and followed by one of its name.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use txm::desk::Desk;
use txm::model::store::ModelStore;
use txm::node::Node;
use txm::options::{SignerPolicy, TxmOptions};
use txm::rpc::pool::Pool;
use txm::signer::Signer as _;

use super::shim::{Keys, Shim, Site};

pub(super) type NodeDesk = Desk<Shim<ModelStore>, Site, Keys>;

/// Whether a process runs. A paused one is not polled, as behind SIGSTOP.
#[derive(Default)]
struct Gate {
    is_paused: AtomicBool,
    waker: AtomicWaker,
}

struct Gated<F> {
    gate: Arc<Gate>,
    run: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Gated<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.gate.waker.register(context.waker());
        if self.gate.is_paused.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.run.as_mut().poll(context)
    }
}

/// A process that runs.
pub(super) struct Process {
    pub name: String,
    pub desk: NodeDesk,
    pub store: ModelStore,
    gate: Arc<Gate>,
    stop: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Process {
    pub(super) fn start(
        name: &str,
        store: Shim<ModelStore>,
        sites: Vec<Site>,
        keys: Keys,
        options: TxmOptions,
    ) -> Process {
        let model = store.inner.clone();
        let pool = Pool::new(sites, &options);
        let policy = SignerPolicy {
            is_native_allowed: true,
            tokens: Vec::new(),
            is_any_allowed: false,
            outflow_per_hour_max: Vec::new(),
        };
        let policies = keys.addresses().into_iter().map(|key| (key, policy.clone())).collect();
        let (node, desk) = Node::start(store, pool, keys, options, policies, name.to_owned());
        let (gate, stop) = (Arc::new(Gate::default()), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let run = Box::pin(node.run(async move { stopped.notified().await }));
        let task = tokio::spawn(Gated { gate: Arc::clone(&gate), run });
        Process { name: name.to_owned(), desk, store: model, gate, stop, task }
    }

    pub(super) fn pause(&self, is_paused: bool) {
        self.gate.is_paused.store(is_paused, Ordering::Release);
        self.gate.waker.wake();
    }

    pub(super) fn is_paused(&self) -> bool {
        self.gate.is_paused.load(Ordering::Acquire)
    }

    /// Asks it to end in order.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }

    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Kills it: its futures are dropped where they are. A panic in it goes on here.
    pub(super) async fn kill(self) {
        self.task.abort();
        if let Err(error) = self.task.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
