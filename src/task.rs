//! The supervisor of the background tasks of a process.
//!
//! Every task has a name and runs until the process stops. If a task ends before, [`Tasks::failed`]
//! returns why, and the process must end: nothing else would do the task's work.

use std::future::pending;

use futures_util::future::select_all;
use tokio::task::{JoinError, JoinHandle};
use tracing::error;

use crate::exit::Exit;
use crate::postgres::Superseded;

/// The background tasks of a process. Dropping it leaves them running.
#[derive(Default)]
pub struct Tasks {
    running: Vec<Task>,
}

struct Task {
    name: &'static str,
    /// Aborted by the stop. The other tasks end by themselves when the process stops.
    endless: bool,
    handle: JoinHandle<Result<(), Superseded>>,
}

/// Why the process must end.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The process may not write any more.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// A bug: the task has panicked.
    #[error("a task of the service broke: {task}; restart to continue the transfers")]
    Broken {
        /// The task's name.
        task: &'static str,
        /// The panic.
        source: JoinError,
    },
    /// A bug: the task has ended, and the process is not stopping.
    #[error("a task of the service ended: {task}; restart to continue the transfers")]
    Ended {
        /// The task's name.
        task: &'static str,
    },
}

impl Failed {
    /// The exit code of the process.
    pub fn exit(&self) -> Exit {
        match self {
            Failed::Superseded(_) => Exit::Superseded,
            Failed::Broken { .. } | Failed::Ended { .. } => Exit::Broken,
        }
    }
}

impl Tasks {
    /// Runs a task that ends by itself when the process stops.
    pub fn run(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), Superseded>> + Send + 'static,
    ) {
        self.running.push(Task { name, endless: false, handle: tokio::spawn(task) });
    }

    /// Runs a task that never ends. [`Tasks::abort_endless`] aborts it at any of its awaits.
    pub fn run_endless(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = async move {
            task.await;
            Ok(())
        };
        debug_assert!(
            self.running.iter().all(|task| task.name != name || !task.endless),
            "one endless task of a name: {name}"
        );
        self.running.push(Task { name, endless: true, handle: tokio::spawn(task) });
    }

    /// Waits until a task ends. While every task runs it does not return.
    pub async fn failed(&mut self) -> Failed {
        if self.running.is_empty() {
            return pending().await;
        }
        let handles = self.running.iter_mut().map(|task| &mut task.handle);
        let (ended, index, _) = select_all(handles).await;
        // A handle that has returned its result must not be polled again.
        let task = self.running.swap_remove(index).name;
        match ended {
            Ok(Err(superseded)) => Failed::Superseded(superseded),
            // The transfers of a worker are durable. After a restart they continue.
            Err(source) => Failed::Broken { task, source },
            Ok(Ok(())) => Failed::Ended { task },
        }
    }

    /// Aborts the tasks that never end.
    pub fn abort_endless(&mut self) {
        for task in self.running.iter().filter(|task| task.endless) {
            task.handle.abort();
        }
    }

    /// Waits until every task has ended. Call it after the inputs of the tasks have been dropped.
    pub async fn join(self) {
        for Task { name, endless, handle } in self.running {
            debug_assert!(!name.is_empty(), "a task that breaks is logged by its name");
            match handle.await {
                Ok(Ok(())) => {}
                Ok(Err(superseded)) => error!("{superseded}"),
                Err(aborted) if endless && aborted.is_cancelled() => {}
                Err(panicked) => error!(%panicked, "a task broke: {name}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: the supervisor waited only for a task that had ended without a failure. A process
    /// that was superseded, or had a broken worker, went on.
    #[tokio::test]
    async fn the_end_of_a_task_hides_no_failure() {
        let mut tasks = Tasks::default();
        tasks.run("worker", async { Ok(()) });
        tasks.run("relay", async { panic!("a bug") });
        tasks.run("audit", async { Err(Superseded) });
        tasks.run_endless("upkeep", pending());
        let mut exits = Vec::new();
        for _ in 0..3 {
            let failed = tasks.failed().await;
            match &failed {
                Failed::Superseded(_) => {}
                Failed::Broken { task, .. } => assert_eq!(*task, "relay"),
                Failed::Ended { task } => assert_eq!(*task, "worker"),
            }
            exits.push(failed.exit().code());
        }
        exits.sort_unstable();
        assert_eq!(exits, [71, 71, 75]);
        tasks.abort_endless();
        tasks.join().await;
    }
}
