//! The session of a book at the socket of ubscore: frames out, frames in.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use engine::venue::OpenError;
use stream::block::{CloseReason, Open, Opened, ReadBalance, ReadHolds, TOKEN_BYTES};
use stream::frame::cutter;
use stream::message::Message;
use tokio_util::codec::Decoder;
use ubscore::service::Service;

use crate::embed::Desk;

/// After so long without a message, Alive is sent.
pub(crate) const ALIVE_AFTER: Duration = Duration::from_secs(1);

/// The session has ended, and another one may be opened.
#[derive(Debug, thiserror::Error)]
#[error("the session has ended: {0}")]
pub(crate) struct Lost(pub(crate) &'static str);

/// The way to ubscore.
pub(crate) enum Way {
    Socket(UnixStream),
    Embedded(Desk),
}

/// An open session.
pub(crate) struct Session {
    way: Way,
    /// Frames of ubscore. Without a sender the connection has ended.
    pub(crate) heard: Receiver<BytesMut>,
}

impl Session {
    /// Opens a session with the next epoch. `told`: the highest number answered to this venue.
    ///
    /// Errors: [`Lost`] if another try may succeed.
    pub(crate) fn open(socket: &Path, venue: u32, told: u64) -> anyhow::Result<(Session, Opened)> {
        let token = std::env::var("UBSCORE_TOKEN").context("UBSCORE_TOKEN")?;
        ensure!(token.len() <= TOKEN_BYTES, "the token is too long");
        let mut field = [0; TOKEN_BYTES];
        field[..token.len()].copy_from_slice(token.as_bytes());
        let stream = UnixStream::connect(socket).map_err(|_| Lost("no server at the socket"))?;
        let (sender, heard) = unbounded();
        let mut input = stream.try_clone().context("a second handle of the socket")?;
        thread::spawn(move || read(&mut input, &sender));
        let mut session = Session { way: Way::Socket(stream), heard };
        let (epoch, told, venue) = (0.into(), told.into(), venue.into());
        let mut bytes = BytesMut::new();
        Message::Open(&Open { epoch, told, venue, token: field }).append_to(&mut bytes);
        session.send(&bytes)?;
        let first = session.hear();
        let first = first.map_err(|error| match error.downcast_ref::<Closed>() {
            // Another session is open, or the server has not noticed the end of the last one.
            Some(Closed(CloseReason::Fenced)) => Lost("another session is open").into(),
            _ => error,
        })?;
        match Message::read(&first) {
            Ok(Message::Opened(opened)) => Ok((session, *opened)),
            other => bail!("{other:?} came instead of Opened"),
        }
    }

    /// Opens a session in this process, see [`Session::open`].
    pub(crate) fn embed(
        service: &Service,
        venue: u32,
        told: u64,
    ) -> anyhow::Result<(Session, Opened)> {
        let session = service.venue(venue, 0, told).map_err(|error| match error {
            OpenError::Busy | OpenError::Fenced { .. } => Lost("another session is open").into(),
            OpenError::Unnoted | OpenError::NoRoom(_) => Lost("ubscore opens none now").into(),
            other => anyhow::Error::from(other),
        })?;
        let (desk, heard, opened) = Desk::open(session)?;
        Ok((Session { way: Way::Embedded(desk), heard }, opened))
    }

    /// Sends frames.
    pub(crate) fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        match &mut self.way {
            Way::Socket(stream) => {
                Ok(stream.write_all(frames).map_err(|_| Lost("the server is gone"))?)
            }
            Way::Embedded(desk) => desk.send(frames),
        }
    }

    /// Sends one message.
    pub(crate) fn say(&mut self, message: &Message<'_>) -> anyhow::Result<()> {
        let mut bytes = BytesMut::new();
        message.append_to(&mut bytes);
        self.send(&bytes)
    }

    /// All holds of this venue: the remaining amount by number.
    pub(crate) fn holds(&mut self) -> anyhow::Result<BTreeMap<u64, u64>> {
        let (mut holds, mut after) = (BTreeMap::new(), 0);
        loop {
            self.say(&Message::ReadHolds(&ReadHolds { after: after.into() }))?;
            let before = holds.len();
            loop {
                let frame = self.hear()?;
                let Ok(Message::Holds(part, rows)) = Message::read(&frame) else {
                    bail!("another message came instead of Holds");
                };
                holds.extend(rows.iter().map(|row| (row.number.get(), row.remaining.get())));
                if part.follows == 0 {
                    break;
                }
            }
            // A read has a bound of rows.
            match holds.last_key_value() {
                Some((last, _)) if holds.len() > before => after = *last,
                _ => return Ok(holds),
            }
        }
    }

    /// Available and held, smallest units.
    pub(crate) fn balance(&mut self, user: u64, asset: u32) -> anyhow::Result<(u128, u128)> {
        self.say(&Message::ReadBalance(&ReadBalance { user: user.into(), asset: asset.into() }))?;
        match Message::read(&self.hear()?) {
            Ok(Message::Balance(row)) => Ok((row.available.number(), row.held.number())),
            other => bail!("{other:?} came instead of Balance"),
        }
    }

    /// Waits for the next message but Alive, and sends Alive meanwhile.
    pub(crate) fn hear(&mut self) -> anyhow::Result<BytesMut> {
        loop {
            match self.heard.recv_timeout(ALIVE_AFTER) {
                Ok(frame) => {
                    if let Some(frame) = self.sort(frame)? {
                        return Ok(frame);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.say(&Message::Alive)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Lost("the server is gone").into());
                }
            }
        }
    }

    /// Answers Alive, and ends the session at Close. All other messages are returned.
    pub(crate) fn sort(&mut self, frame: BytesMut) -> anyhow::Result<Option<BytesMut>> {
        match Message::read(&frame) {
            Ok(Message::Alive) => self.say(&Message::Alive).map(|()| None),
            Ok(Message::Close(close)) => match CloseReason::from_number(close.reason) {
                Some(CloseReason::Stopping) => Err(Lost("the server stops").into()),
                Some(CloseReason::Silent) => Err(Lost("this book was silent").into()),
                Some(reason) => Err(Closed(reason).into()),
                None => bail!("an unknown reason: {}", close.reason),
            },
            Ok(_) => Ok(Some(frame)),
            Err(_) => bail!("a message of another schema"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The reader has a second handle. Without an error to report: the session has ended.
        if let Way::Socket(stream) = &self.way {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// ubscore has ended the session, and people must look.
#[derive(Debug, thiserror::Error)]
#[error("ubscore has closed the session: {}", .0.name())]
struct Closed(CloseReason);

/// Cuts the frames of a connection, to its end.
fn read(input: &mut UnixStream, heard: &Sender<BytesMut>) {
    let (mut buffer, mut cutter, mut bytes) = (BytesMut::new(), cutter(), [0; 1 << 16]);
    while let Ok(count @ 1..) = input.read(&mut bytes) {
        buffer.extend_from_slice(&bytes[..count]);
        while let Ok(Some(frame)) = cutter.decode(&mut buffer) {
            if heard.send(frame).is_err() {
                return;
            }
        }
    }
}
