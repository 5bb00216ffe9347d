//! A wait of a plain thread for one answer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::ledger::Answer;
use crate::ring::{Overloaded, Pending};
use crate::shared::Shared;
use crate::venue::OpenError;

/// The time between two looks at a stopped engine. An answer ends the wait at once.
const LOOK: Duration = Duration::from_millis(100);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Waits for an answer.
///
/// # Errors
/// [`OpenError::NoRoom`]: nothing was sent, or the log or a table has no room.
/// [`OpenError::Stopped`]: the engine has stopped. The command may be recorded or not: the caller
/// must ask again after the next start. Other errors are those of the answer.
pub(crate) fn wait(
    pending: Result<Pending, Overloaded>,
    shared: &Shared,
) -> Result<Answer, OpenError> {
    let pending = pending.map_err(|Overloaded| OpenError::NoRoom("UBSCore's queue is full"))?;
    let mut pending = pin!(pending);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        // Read first: a stopped core has sent or queued all its answers.
        let stopped = shared.core_stopped.load(Ordering::Acquire)
            && shared.log.durable() == shared.log.appended();
        match pending.as_mut().poll(&mut context) {
            Poll::Ready(Ok(Answer::NotOpened(error))) => return Err(error),
            Poll::Ready(Ok(Answer::Overloaded)) => {
                return Err(OpenError::NoRoom("a table of venues or the log is full"));
            }
            Poll::Ready(Ok(answer)) => return Ok(answer),
            Poll::Ready(Err(_)) => return Err(OpenError::Stopped),
            Poll::Pending if stopped => return Err(OpenError::Stopped),
            Poll::Pending => thread::park_timeout(LOOK),
        }
    }
}
