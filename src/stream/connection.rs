//! One connection of a venue: bytes in, cut into frames; messages out, collected for one write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use stream::block::{Close, CloseReason};
use stream::frame::cutter;
use stream::message::{Malformed, Message};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Decoder, LengthDelimitedCodec};
use tokio_util::io::{poll_read_buf, poll_write_buf};

use crate::clock::Clock;

/// The most bytes of one read: about 1,000 commands. Larger reads gain nothing more.
const READ_BYTES: usize = 65_536;

/// See the module.
pub(super) struct Connection<S> {
    stream: S,
    cutter: LengthDelimitedCodec,
    input: BytesMut,
    output: BytesMut,
    /// Bytes taken by the stream since the connection began.
    written: u64,
    /// Written bytes that a layer below may still hold.
    unflushed: bool,
    /// Nothing may be sent any more: another process may have taken over.
    silent: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    /// When the last bytes came, monotonic ns.
    pub(super) read_ns: u64,
    /// When the output was last empty, or got smaller, monotonic ns.
    pub(super) moved_ns: u64,
    /// When the last message was put into the output, monotonic ns.
    pub(super) sent_ns: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(stream: S, clock: Arc<dyn Clock>, silent: Arc<AtomicBool>) -> Connection<S> {
        let now_ns = clock.monotonic_ns();
        Connection {
            stream,
            cutter: cutter(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            written: 0,
            unflushed: false,
            silent,
            clock,
            read_ns: now_ns,
            moved_ns: now_ns,
            sent_ns: now_ns,
        }
    }

    /// The next frame among the bytes that were read; `None` until more come.
    pub(super) fn frame(&mut self) -> Result<Option<BytesMut>, Malformed> {
        self.cutter.decode(&mut self.input).map_err(|_| Malformed)
    }

    /// Reads once. Returns the number of bytes, 0 if the venue sends no more.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.reserve(READ_BYTES);
        let count = ready!(poll_read_buf(Pin::new(&mut self.stream), context, &mut self.input))?;
        self.read_ns = self.clock.monotonic_ns();
        Poll::Ready(Ok(count))
    }

    /// Puts a message into the output.
    pub(super) fn send(&mut self, message: &Message<'_>) {
        let now_ns = self.clock.monotonic_ns();
        if self.output.is_empty() {
            self.moved_ns = now_ns;
        }
        self.sent_ns = now_ns;
        message.append_to(&mut self.output);
    }

    /// Puts the last message into the output.
    pub(super) fn send_close(&mut self, reason: CloseReason) {
        self.send(&Message::Close(&Close { reason: reason as u8 }));
    }

    /// Bytes that were not written yet.
    pub(super) fn unwritten(&self) -> usize {
        self.output.len()
    }

    /// Bytes taken by the stream since the connection began.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Bytes put into the output since the connection began.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.written + self.output.len() as u64
    }

    /// Writes as much of the output as the venue takes. Ready once everything is written.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.output.has_remaining() {
            if self.silent.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            let stream = Pin::new(&mut self.stream);
            let count = ready!(poll_write_buf(stream, context, &mut self.output))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count as u64;
            self.moved_ns = self.clock.monotonic_ns();
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the next frame; `None` if the venue hangs up before it is complete.
    pub(super) async fn next_frame(&mut self) -> Result<Option<BytesMut>, Malformed> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(Some(frame));
            }
            match poll_fn(|context| self.poll_read(context)).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => {}
            }
        }
    }

    /// Writes the rest of the output and ends the connection. Bytes that still come are dropped
    /// until the venue hangs up too: a socket that is closed with unread bytes can lose the last
    /// message.
    pub(super) async fn finish(mut self) {
        let ended = poll_fn(|context| {
            ready!(self.poll_write(context))?;
            Pin::new(&mut self.stream).poll_shutdown(context)
        });
        if ended.await.is_err() {
            return;
        }
        loop {
            self.input.clear();
            match poll_fn(|context| self.poll_read(context)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
