//! The journal of a book: a file of frames, as they are on the socket.
//!
//! It holds the first Opened, then each command and each answer. A command that follows from an
//! answer stands behind it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use bytes::BytesMut;
use stream::block::{Opened, Reserve};
use stream::frame::cutter;
use stream::message::Message;
use tokio_util::codec::Decoder;

pub(crate) struct Journal {
    file: File,
}

impl Journal {
    /// Opens or makes the journal. A second book cannot open it meanwhile.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Journal> {
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(path)?;
        file.try_lock().context("another book has the journal")?;
        let mut journal = Journal { file };
        let bytes = journal.bytes()?;
        let (frames, left) = cut(&bytes)?;
        drop(frames);
        // A kill has torn the last append: nothing of it was sent, printed or acknowledged.
        journal.file.set_len((bytes.len() - left) as u64)?;
        Ok(journal)
    }

    fn bytes(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// All frames, in order.
    pub(crate) fn frames(&mut self) -> anyhow::Result<VecDeque<BytesMut>> {
        Ok(cut(&self.bytes()?)?.0)
    }

    /// Appends frames. They are durable when it returns.
    pub(crate) fn append(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(frames).context("write the journal")?;
        self.file.sync_data().context("sync the journal")
    }

    /// The first Opened, if there is one.
    pub(crate) fn begun(&mut self) -> anyhow::Result<Option<Opened>> {
        let frames = self.frames()?;
        let Some(first) = frames.front() else { return Ok(None) };
        match Message::read(first) {
            Ok(Message::Opened(opened)) => Ok(Some(*opened)),
            _ => anyhow::bail!("the journal does not begin with Opened"),
        }
    }

    /// The commands with numbers that are `wanted`, as they are sent. A command that was refused
    /// might succeed if ubscore has lost it. In its place stands one that is refused in any state.
    pub(crate) fn commands(&mut self, wanted: impl Fn(u64) -> bool) -> anyhow::Result<BytesMut> {
        let (mut commands, successes) = (BytesMut::new(), self.successes()?);
        for frame in &self.frames()? {
            let message = Message::read(frame).ok().context("a frame of the journal")?;
            match number_of(&message) {
                Some(number) if !wanted(number) => {}
                Some(number) if successes.get(&number) == Some(&false) => {
                    Message::Reserve(&of_nothing(number)).append_to(&mut commands);
                }
                Some(_) => message.append_to(&mut commands),
                None => {}
            }
        }
        Ok(commands)
    }

    /// The numbers with an answer, and whether it is a success.
    pub(crate) fn successes(&mut self) -> anyhow::Result<BTreeMap<u64, bool>> {
        let frames = self.frames()?;
        let answers = frames.iter().filter_map(|frame| match Message::read(frame) {
            Ok(Message::Answer(answer)) => Some((answer.number.get(), answer.code.get() == 0)),
            _ => None,
        });
        Ok(answers.collect())
    }
}

/// A RESERVE of amount 0. It is always INVALID_POSTING.
fn of_nothing(number: u64) -> Reserve {
    let (number, user) = (number.into(), 0.into());
    Reserve { number, reference: 0.into(), user, amount: 0.into(), onto: 0.into(), asset: 0.into() }
}

/// The number of a command.
pub(crate) fn number_of(message: &Message<'_>) -> Option<u64> {
    match message {
        Message::Reserve(reserve) => Some(reserve.number.get()),
        Message::Settle(set, _) | Message::Post(set, _) => Some(set.number.get()),
        Message::Release(release) => Some(release.number.get()),
        _ => None,
    }
}

/// The whole frames, and the bytes behind them.
fn cut(bytes: &[u8]) -> anyhow::Result<(VecDeque<BytesMut>, usize)> {
    let (mut input, mut cutter, mut frames) = (BytesMut::from(bytes), cutter(), VecDeque::new());
    while let Some(frame) = cutter.decode(&mut input).context("cut the journal")? {
        ensure!(Message::read(&frame).is_ok(), "frame {} of the journal", frames.len() + 1);
        frames.push_back(frame);
    }
    // The cutter takes the length of a torn frame out of the buffer.
    let whole: usize = frames.iter().map(|frame| frame.len() + 4).sum();
    Ok((frames, bytes.len() - whole))
}
