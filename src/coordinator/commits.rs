//! The number of workers that commit now, for work that is better done between two commits.

use std::sync::Arc;

use tokio::sync::watch;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Commits(watch::Sender<usize>);

impl Commits {
    /// A worker begins a commit. It ends when the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Commit {
        self.0.send_modify(|count| *count += 1);
        Commit(Arc::clone(self))
    }

    /// Returns once no worker commits.
    pub(super) async fn none(&self) {
        // The sender lives as long as this.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }
}

/// One commit under way.
pub(super) struct Commit(Arc<Commits>);

impl Drop for Commit {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn there_is_no_commit_once_the_last_one_has_ended() {
        let commits = Arc::new(Commits::default());
        assert_eq!(commits.none().now_or_never(), Some(()));
        let (first, second) = (commits.begin(), commits.begin());
        drop(first);
        assert_eq!(commits.none().now_or_never(), None);
        drop(second);
        assert_eq!(commits.none().now_or_never(), Some(()));
    }
}
