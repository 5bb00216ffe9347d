//! The output of a command: stdout whose reader may leave, and one JSON object a line.

use std::error::Error;
use std::io::{self, StdoutLock, Write};

use serde::Serialize;

/// The output of a command. A closed reader is not a failure, because the command's action is done
/// by then.
pub(super) struct Out(StdoutLock<'static>);

/// The reader of the output has closed it, as `| head` does.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
pub(super) struct HungUp;

impl Out {
    pub(super) fn lock() -> Out {
        Out(io::stdout().lock())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(HungUp::mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(HungUp::mark)
    }
}

impl HungUp {
    /// Marks errors of stdout, because a connection to a server may break with the same kind of
    /// error.
    fn mark(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, HungUp),
            _ => error,
        }
    }

    /// Whether the closed output is the cause of an error.
    pub(super) fn is_cause_of(error: &anyhow::Error) -> bool {
        let inner = |cause: &(dyn Error + 'static)| {
            let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            inner.is_some_and(|inner| inner.is::<HungUp>())
        };
        error.chain().any(inner)
    }
}

/// An object as one line of JSON, without the line break.
pub(super) fn json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("text and numbers under text keys")
}
