//! The path of a log line to stderr: a bounded queue, and a thread that writes.
//!
//! The reader of stderr may stop reading: a stalled collector, a stopped journal, Ctrl-S. A thread
//! that logs never waits for it. If the queue is full or stderr is closed, the line is dropped and
//! counted.

use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::format::Format;

/// The most lines in the queue; the next line is dropped. A line has some 200 bytes, so a full
/// queue takes a few MiB.
const LINES_MAX: usize = 16_384;
/// How long the end of a process waits for the lines in the queue. A reader that does not read must
/// not keep the process alive.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue of this process, after logging started.
struct Queue {
    format: Format,
    lines: NonBlocking,
    dropped: ErrorCounter,
    /// Taken at the end: dropping it writes the queued lines.
    guard: Mutex<Option<WorkerGuard>>,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();
/// Number of lines that could not be written to stderr.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

/// The most bytes of one write, unless one line is longer. A pipe takes so many at once (pipe(7)),
/// so that lines of another process with this stderr come before or after them.
const WRITE_BYTES: usize = 4_096;

/// How long the writing thread rests after a write. Under load a line comes every few hundred
/// microseconds, and to wake the thread and to write cost as much for one line as for ten.
const REST: Duration = Duration::from_millis(1);

/// The end of the queue, written by one thread. Lines that arrive together share a write. The queue
/// calls `flush` as soon as it is empty: no line waits for the next one, but at most for the rest
/// after an earlier one.
struct End<W> {
    out: W,
    rest: Duration,
    text: Vec<u8>,
    /// Lines in `text`.
    lines: u64,
}

impl<W: Write> End<W> {
    fn new(out: W, rest: Duration) -> End<W> {
        End { out, rest, text: Vec::with_capacity(WRITE_BYTES), lines: 0 }
    }

    /// Writes the lines in `text`.
    fn put(&mut self) {
        // An error means that the reader has gone; the exit code still reports.
        if self.lines > 0 && self.out.write_all(&self.text).is_err() {
            UNWRITTEN.fetch_add(self.lines, Ordering::Relaxed);
        }
        self.text.clear();
        // The memory of a very long line is not kept.
        self.text.shrink_to(WRITE_BYTES);
        self.lines = 0;
    }
}

impl<W: Write> Write for End<W> {
    /// Takes one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.text.len() + line.len() > WRITE_BYTES {
            self.put();
        }
        self.text.extend_from_slice(line);
        self.lines += 1;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.lines > 0 {
            self.put();
            thread::sleep(self.rest);
        }
        Ok(())
    }
}

/// Starts the writing thread, and reports panics through it. The first call of a process decides
/// the format.
pub(super) fn open(format: Format) -> NonBlocking {
    let queue = QUEUE.get_or_init(|| {
        let (lines, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(LINES_MAX)
            .lossy(true)
            .thread_name("log")
            .finish(End::new(io::stderr(), REST));
        let dropped = lines.error_counter();
        // The standard hook writes to stderr directly: a panicking thread would wait for the
        // reader.
        std::panic::set_hook(Box::new(report));
        Queue { format, lines, dropped, guard: Mutex::new(Some(guard)) }
    });
    queue.lines.clone()
}

/// Lines dropped since the start.
pub(super) fn dropped() -> u64 {
    let full = QUEUE.get().map_or(0, |queue| queue.dropped.dropped_lines());
    u64::try_from(full).unwrap_or(u64::MAX).saturating_add(UNWRITTEN.load(Ordering::Relaxed))
}

/// Queues the report of a panic.
fn report(panic: &PanicHookInfo<'_>) {
    let Some(queue) = QUEUE.get() else { return };
    let current = thread::current();
    let name = current.name().unwrap_or("without a name");
    let backtrace = std::backtrace::Backtrace::capture();
    let mut text = format!("thread {name}: {panic}");
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        text.push_str(&format!("\n{backtrace}"));
    }
    // The queue returns no error: a dropped line is counted.
    queue.lines.clone().write_all(line(queue.format, "panic", &text).as_bytes()).ok();
}

/// Writes the last line of a process after every line in the queue: `head: text`, or JSON if lines
/// are JSON. Later lines are dropped. Without a queue the line goes to stderr at once.
///
/// Waits at most a second for the reader of stderr. Without a reader only the exit code reports.
pub fn last_words(head: &'static str, text: &str) {
    match QUEUE.get() {
        Some(queue) => close(Some(line(queue.format, head, text))),
        None => write_now(&line(Format::Text, head, text)),
    }
}

/// Writes the lines in the queue. Later lines are dropped. Waits at most a second.
pub fn flush() {
    close(None);
}

fn close(last: Option<String>) {
    let guard = QUEUE.get().and_then(|queue| queue.guard.lock().take());
    let (done, written) = mpsc::channel();
    // On its own thread, because the guard and the last line wait for stderr without a limit.
    let write = move || {
        drop(guard);
        if let Some(last) = last {
            write_now(&last);
        }
        // An error means that the process no longer waits.
        done.send(()).ok();
    };
    if thread::Builder::new().name("last-words".to_owned()).spawn(write).is_ok() {
        // An error means that the reader does not read.
        written.recv_timeout(LAST_LINES).ok();
    }
}

fn write_now(line: &str) {
    // An error means that the reader has gone; the exit code still reports.
    io::stderr().write_all(line.as_bytes()).ok();
}

/// One line outside of `tracing`, in the same format.
fn line(format: Format, head: &str, text: &str) -> String {
    match format {
        Format::Text => format!("{head}: {text}\n"),
        Format::Json => {
            let mut timestamp = String::new();
            // An error means a clock before 1970. Then the line has no valid time.
            SystemTime.format_time(&mut Writer::new(&mut timestamp)).ok();
            let message = format!("{head}: {text}");
            let fields = json!({ "message": message });
            let line = json!({
                "timestamp": timestamp, "level": "ERROR", "fields": fields, "target": "ubscore",
            });
            format!("{line}\n")
        }
    }
}

/// JSON lines without the source position of a library: `log.file` is a path of the machine that
/// built the binary.
pub(super) struct WithoutPaths<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for WithoutPaths<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        // Only lines of the crate `log` have these fields.
        if !line.contains("\"log.") {
            return writer.write_str(&line);
        }
        match serde_json::from_str::<Value>(&line) {
            Ok(mut whole) => {
                if let Some(fields) = whole.get_mut("fields").and_then(Value::as_object_mut) {
                    fields.retain(|name, _| !name.starts_with("log."));
                }
                writeln!(writer, "{whole}")
            }
            Err(_) => writer.write_str(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each write as it came; none if the reader has gone.
    struct Reader {
        writes: Vec<String>,
        gone: bool,
    }

    impl Write for &mut Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.gone {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.writes.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Goal: lines that arrive together share a write, whole and in order, and a flush leaves none.
    /// Method: short lines, then one that does not fit any more, then one that never fits.
    #[test]
    fn lines_share_a_write_as_long_as_they_fit() {
        let mut reader = Reader { writes: Vec::new(), gone: false };
        let mut end = End::new(&mut reader, Duration::ZERO);
        let [half, long] = [WRITE_BYTES / 2, 3 * WRITE_BYTES].map(|bytes| "x".repeat(bytes) + "\n");
        for line in ["a\n", "b\n", &half, &half, &long, "c\n"] {
            end.write_all(line.as_bytes()).expect("taken");
        }
        end.flush().expect("written");
        end.flush().expect("nothing is left");
        assert!(end.text.capacity() < long.len(), "{} bytes are kept", end.text.capacity());
        let first = format!("a\nb\n{half}");
        assert_eq!(reader.writes, [first, half, long, "c\n".to_owned()]);
    }

    #[test]
    fn each_line_that_cannot_be_written_is_counted() {
        let mut reader = Reader { writes: Vec::new(), gone: true };
        let mut end = End::new(&mut reader, Duration::ZERO);
        let before = UNWRITTEN.load(Ordering::Relaxed);
        for line in ["a\n", "b\n", "c\n"] {
            end.write_all(line.as_bytes()).expect("taken");
        }
        end.flush().expect("the end never fails");
        assert!(UNWRITTEN.load(Ordering::Relaxed) - before >= 3);
        assert_eq!(end.lines, 0);
    }

    #[test]
    fn a_last_line_has_the_form_of_the_others() {
        assert_eq!(line(Format::Text, "error", "no disk"), "error: no disk\n");
        let json: Value =
            serde_json::from_str(&line(Format::Json, "error", "no \"disk\"")).expect("JSON");
        assert_eq!(json["level"], json!("ERROR"));
        assert_eq!(json["fields"]["message"], json!("error: no \"disk\""));
        assert!(json["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{json}");
    }
}
