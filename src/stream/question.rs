//! The questions of a venue: its holds, and a balance.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use engine::VenueReader;
use engine::venue::{BalanceRow, Holds, OpenError};
use stream::block::{Balance, HoldRow, HoldsPart};
use stream::message::{HOLDS_MAX, Message};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use crate::clock::Clock;

/// The pause before a question that found UBSCore's queue full is repeated.
const PAUSE: Duration = Duration::from_millis(20);

/// A question that waits for UBSCore.
pub(super) type Asking = Pin<Box<dyn Future<Output = Result<Said, OpenError>> + Send>>;

/// A question to UBSCore. It keeps its place among the commands.
#[derive(Clone, Copy)]
pub(super) enum Question {
    Holds { after: u64 },
    Balance { user: u64, asset: u32 },
}

impl Question {
    /// Asks UBSCore on another thread: the answer waits for a sync.
    pub(super) async fn ask(
        self,
        mut reader: VenueReader,
        clock: Arc<dyn Clock>,
    ) -> Result<Said, OpenError> {
        loop {
            let asked = move || {
                let said = match self {
                    Question::Holds { after } => reader.holds(after).map(Said::Holds),
                    Question::Balance { user, asset } => {
                        reader.balance(user, asset).map(Said::Balance)
                    }
                };
                (reader, said)
            };
            let (returned, said) = tokio::task::spawn_blocking(asked).await.expect("no panic");
            reader = returned;
            match said {
                Err(OpenError::NoRoom(_)) => clock.sleep(PAUSE).await,
                said => return said,
            }
        }
    }
}

/// The reply to a question.
pub(super) enum Said {
    Holds(Holds),
    Balance(BalanceRow),
}

impl Said {
    /// Puts it into the output.
    pub(super) fn send<S: AsyncRead + AsyncWrite + Unpin>(&self, connection: &mut Connection<S>) {
        match self {
            Said::Holds(holds) => send_holds(holds, connection),
            Said::Balance(row) => {
                let balance = Balance {
                    available: row.available.unwrap_or(0).into(),
                    held: row.held.into(),
                    position: row.position.into(),
                };
                connection.send(&Message::Balance(&balance));
            }
        }
    }
}

fn send_holds<S: AsyncRead + AsyncWrite + Unpin>(holds: &Holds, connection: &mut Connection<S>) {
    let row = |hold: &engine::venue::HoldRow| HoldRow {
        number: hold.number.into(),
        reference: hold.reference.into(),
        user: hold.user.into(),
        remaining: hold.remaining.into(),
        record: hold.record.into(),
        asset: hold.asset.into(),
    };
    let rows: Vec<HoldRow> = holds.holds.iter().map(row).collect();
    let mut chunks = rows.chunks(HOLDS_MAX).peekable();
    loop {
        let rows = chunks.next().unwrap_or(&[]);
        let follows = u8::from(chunks.peek().is_some());
        let part = HoldsPart { position: holds.position.into(), follows };
        connection.send(&Message::Holds(&part, rows));
        if follows == 0 {
            return;
        }
    }
}
