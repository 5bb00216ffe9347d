//! Work that goes on when its client hangs up.

use tracing::Instrument;

use crate::http::refusal::Refusal;
use domain::code::Code;

/// Runs work of several parts to its end, even if the client hangs up or the request times out.
pub(super) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work.in_current_span()).await.map_err(|_panicked| Code::SystemError)?
}
