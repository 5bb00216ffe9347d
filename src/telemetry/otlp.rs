//! Spans for an OpenTelemetry collector: OTLP over HTTP, in binary.
//!
//! The SDK batches them on its own thread, from a bounded queue. Spans are lost if the queue is
//! full or the collector is unreachable; no thread waits. Each loss and each return of the
//! collector is logged once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hyper::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tracing::{Span, info, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::release;

/// Timeout of the collector for one batch.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Makes the SDK and starts its thread.
///
/// # Errors
/// The exporter refuses the endpoint.
pub(super) fn provider(
    endpoint: &str,
    sample_ratio: f64,
) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let agent = ureq::Agent::config_builder()
        .user_agent(crate::release::USER_AGENT)
        .timeout_global(Some(TIMEOUT))
        // The SDK reads the status and the body of an answer itself.
        .http_status_as_error(false)
        .build();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector { agent: agent.into(), away: AtomicBool::new(false) })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .with_timeout(TIMEOUT)
        .build()?;
    let resource = Resource::builder()
        .with_service_name("ubscore")
        .with_attribute(KeyValue::new("service.version", release::VERSION))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        // A client's decision about the whole trace applies.
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample_ratio))))
        .with_resource(resource)
        .build())
}

/// The maker of spans.
pub(super) fn tracer(provider: &SdkTracerProvider) -> SdkTracer {
    provider.tracer("ubscore")
}

/// Makes a span part of the client's trace, if its `traceparent` is valid.
pub fn continue_trace(span: &Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    if context.span().span_context().is_valid() && !span.is_disabled() {
        // An error means that this process sends no spans.
        span.set_parent(context).ok();
    }
}

/// The HTTP client of the collector, for a thread that may wait.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    away: AtomicBool,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let sent = self.agent.run(Request::from_parts(parts, body.as_ref()));
        let answered = sent.map_err(io::Error::other).and_then(|answer| {
            let (parts, mut body) = answer.into_parts();
            let body = body.read_to_vec().map_err(io::Error::other)?;
            Ok(Response::from_parts(parts, Bytes::from(body)))
        });
        // The lines below belong to no span: this thread has none open.
        match &answered {
            Ok(answer) if answer.status().is_success() => {
                if self.away.swap(false, Ordering::Relaxed) {
                    info!("the collector accepts spans again");
                }
            }
            Ok(answer) => self.complain(&format!("it answered {}", answer.status())),
            Err(error) => self.complain(&error.to_string()),
        }
        Ok(answered?)
    }
}

impl Collector {
    fn complain(&self, why: &str) {
        if !self.away.swap(true, Ordering::Relaxed) {
            warn!(why, "the collector does not accept spans; they are lost until it does");
        }
    }
}
