//! Looks at the rows of payments that are told. Callers that arrive during a look share the next
//! one, so that many payments cost one statement. A look waits for nothing.

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::warn;

use crate::coordinator::Rejection;
use crate::postgres::Error;
use crate::postgres::reads::Reads;
use crate::postgres::reads::recharges::{KnownMatter, MatterKey};
use domain::code::Code;

/// The result of a look for one caller.
type Looked = Result<KnownMatter, Rejection>;

/// See the module.
#[derive(Default)]
pub(super) struct Lookups {
    waiting: Mutex<Vec<(MatterKey, oneshot::Sender<Looked>)>>,
    /// Held by the caller that looks for all.
    turn: tokio::sync::Mutex<()>,
}

impl Lookups {
    /// The rows that a payment's facts name, as they are committed now.
    ///
    /// # Errors
    /// A [`Rejection`]: nothing is known.
    pub(super) async fn look(&self, reads: &Reads, key: &MatterKey) -> Looked {
        if key.trade_no.contains('\0') {
            // No row has it, and the statement of all callers would fail.
            warn!(channel = key.channel, "PostgreSQL takes no number with a zero byte");
            return Err(Rejection::of(Code::SystemError));
        }
        loop {
            let (answer_to, mut answer) = oneshot::channel();
            self.waiting.lock().push((key.clone(), answer_to));
            let turn = tokio::select! {
                biased;
                looked = &mut answer => match looked {
                    Ok(looked) => return looked,
                    // The caller that looked for all was dropped.
                    Err(_) => continue,
                },
                turn = self.turn.lock() => turn,
            };
            let asked = std::mem::take(&mut *self.waiting.lock());
            self.look_for(reads, asked).await;
            drop(turn);
            if let Ok(looked) = answer.await {
                return looked;
            }
        }
    }

    /// Looks for all of them, and answers each.
    async fn look_for(&self, reads: &Reads, asked: Vec<(MatterKey, oneshot::Sender<Looked>)>) {
        if asked.is_empty() {
            return;
        }
        let (keys, callers): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let found = match reads.matters(&keys).await {
            Ok(found) => {
                found.into_iter().map(|found| found.map_err(|error| away(&error))).collect()
            }
            Err(error) => vec![Err(away(&error)); keys.len()],
        };
        for (answer_to, looked) in callers.into_iter().zip(found) {
            // A caller that was dropped needs no answer.
            drop(answer_to.send(looked));
        }
    }
}

fn away(error: &Error) -> Rejection {
    warn!(%error, "a payment waits for PostgreSQL");
    Rejection::of(Code::SystemError)
}
