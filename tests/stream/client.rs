//! A venue at the socket, as the tests need it: it sends frames, and waits for each message.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::BytesMut;
use domain::code::Code;
use domain::posting::{Leg, Place};
use stream::block::{
    Acknowledge, BackReason, CloseReason, LegRow, NO_LEG, Open, ReadBalance, ReadHolds, Release,
    Reserve, Set, TOKEN_BYTES,
};
use stream::frame::cutter;
use stream::message::Message;
use tokio_util::codec::{Decoder, LengthDelimitedCodec};
use ubscore::http::auth::Role;

use crate::harness::{PATIENCE, token};

/// The user in the tokens of venues: it has no money.
const OPERATOR: u64 = 9_100;

/// One connection.
pub(crate) struct Venue<S = UnixStream> {
    pub(crate) stream: S,
    cutter: LengthDelimitedCodec,
    input: BytesMut,
    output: BytesMut,
}

/// The fields of Opened that tests compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) epoch: u64,
    pub(crate) last: u64,
    pub(crate) acknowledged: u64,
    pub(crate) log: u128,
    pub(crate) window: u64,
}

/// A message of ubscore, with the fields that tests compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Opened(Begun),
    Answer {
        number: u64,
        code: Option<Code>,
        leg: Option<u8>,
        record: u64,
    },
    Back {
        number: u64,
        reason: BackReason,
    },
    /// Number and remaining amount of each hold, and whether more parts follow.
    Holds(Vec<(u64, u64)>, bool),
    Balance {
        available: u128,
        held: u128,
    },
    Close(CloseReason),
}

/// A token of a venue.
pub(crate) fn venue_token(venue: u32) -> String {
    token(OPERATOR, Some(Role::Venue(venue)))
}

/// The Open of a venue.
pub(crate) fn open(venue: u32, epoch: u64, told: u64, token: &str) -> Open {
    let mut field = [0; TOKEN_BYTES];
    field[..token.len()].copy_from_slice(token.as_bytes());
    Open { epoch: epoch.into(), told: told.into(), venue: venue.into(), token: field }
}

/// A leg of USDT.
pub(crate) fn leg(from: Place, to: Place, amount: u64) -> Leg {
    Leg { from, to, asset: USDT, amount }
}

pub(crate) const BTC: u32 = 1;
pub(crate) const USDT: u32 = 3;

impl Venue {
    /// A connection that has sent nothing.
    pub(crate) fn connect(socket: &Path) -> Venue {
        let stream = UnixStream::connect(socket).expect("the socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Venue::on(stream)
    }

    /// A session of a venue that takes the next epoch.
    pub(crate) fn opened(socket: &Path, venue: u32, told: u64) -> (Venue, Begun) {
        let mut session = Venue::connect(socket);
        session.send(&Message::Open(&open(venue, 0, told, &venue_token(venue))));
        match session.hear() {
            Heard::Opened(begun) => (session, begun),
            other => panic!("{other:?}"),
        }
    }
}

impl<S: Read + Write> Venue<S> {
    pub(crate) fn on(stream: S) -> Venue<S> {
        Venue { stream, cutter: cutter(), input: BytesMut::new(), output: BytesMut::new() }
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &Message<'_>) {
        message.append_to(&mut self.output);
        let bytes = self.output.split();
        self.send_bytes(&bytes);
    }

    pub(crate) fn reserve(&mut self, number: u64, user: u64, asset: u32, amount: u64) {
        self.reserve_each(&[number], user, asset, amount);
    }

    /// The same RESERVE under each of these numbers, in one write.
    pub(crate) fn reserve_each(&mut self, numbers: &[u64], user: u64, asset: u32, amount: u64) {
        for &number in numbers {
            let reserve = Reserve {
                number: number.into(),
                reference: number.into(),
                user: user.into(),
                amount: amount.into(),
                onto: 0.into(),
                asset: asset.into(),
            };
            Message::Reserve(&reserve).append_to(&mut self.output);
        }
        let bytes = self.output.split();
        self.send_bytes(&bytes);
    }

    pub(crate) fn settle(&mut self, number: u64, legs: &[Leg]) {
        let rows: Vec<LegRow> = legs.iter().copied().map(LegRow::from).collect();
        let set = Set { number: number.into(), reference: number.into() };
        self.send(&Message::Settle(&set, &rows));
    }

    pub(crate) fn release(&mut self, number: u64, hold: u64, amount: u64) {
        let release = Release {
            number: number.into(),
            reference: number.into(),
            hold: hold.into(),
            amount: amount.into(),
        };
        self.send(&Message::Release(&release));
    }

    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.send(&Message::Acknowledge(&Acknowledge { number: number.into() }));
    }

    /// All holds: number and remaining amount.
    pub(crate) fn holds(&mut self) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(0, |(number, _)| *number);
            self.send(&Message::ReadHolds(&ReadHolds { after: after.into() }));
            let before = all.len();
            loop {
                match self.hear() {
                    Heard::Holds(rows, follows) => {
                        all.extend(rows);
                        if !follows {
                            break;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            if all.len() == before {
                return all;
            }
        }
    }

    /// Available and held.
    pub(crate) fn balance(&mut self, user: u64, asset: u32) -> (u128, u128) {
        let read = ReadBalance { user: user.into(), asset: asset.into() };
        self.send(&Message::ReadBalance(&read));
        match self.hear() {
            Heard::Balance { available, held } => (available, held),
            other => panic!("{other:?}"),
        }
    }

    /// The next message but Alive.
    pub(crate) fn hear(&mut self) -> Heard {
        loop {
            match self.try_hear().expect("the connection") {
                Some(Some(heard)) => return heard,
                Some(None) => {}
                None => panic!("the connection has ended"),
            }
        }
    }

    /// The messages up to the connection's end, without Alive.
    pub(crate) fn rest(&mut self) -> Vec<Heard> {
        let mut all = Vec::new();
        // A connection that is cut ends too.
        while let Ok(Some(heard)) = self.try_hear() {
            all.extend(heard);
        }
        all
    }

    /// The next message, `Some(None)` for Alive; `None` at the connection's end.
    pub(crate) fn try_hear(&mut self) -> io::Result<Option<Option<Heard>>> {
        loop {
            if let Some(frame) = self.cutter.decode(&mut self.input)? {
                return Ok(Some(heard(&frame)));
            }
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes)? {
                0 => return Ok(None),
                count => self.input.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// The answer to a number: its code, and the leg and the record with it.
    pub(crate) fn answer(&mut self, expected: u64) -> (Option<Code>, Option<u8>, u64) {
        match self.hear() {
            Heard::Answer { number, code, leg, record } if number == expected => {
                (code, leg, record)
            }
            other => panic!("{other:?} and not the answer to {expected}"),
        }
    }

    /// Asserts that these numbers succeed, in order.
    pub(crate) fn succeed(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            let (code, leg, _) = self.answer(number);
            assert_eq!((code, leg), (None, None), "number {number}");
        }
    }
}

fn heard(frame: &[u8]) -> Option<Heard> {
    Some(match Message::read(frame).expect("a message of the schema") {
        Message::Opened(opened) => Heard::Opened(Begun {
            epoch: opened.epoch.get(),
            last: opened.last.get(),
            acknowledged: opened.acknowledged.get(),
            log: opened.log.number(),
            window: opened.window.get(),
        }),
        Message::Answer(answer) => Heard::Answer {
            number: answer.number.get(),
            code: match answer.code.get() {
                0 => None,
                code => Some(Code::from_number(code).expect("a code")),
            },
            leg: (answer.leg != NO_LEG).then_some(answer.leg),
            record: answer.record.get(),
        },
        Message::Back(back) => Heard::Back {
            number: back.number.get(),
            reason: BackReason::from_number(back.reason).expect("a reason"),
        },
        Message::Holds(part, rows) => {
            let rows = rows.iter().map(|row| (row.number.get(), row.remaining.get())).collect();
            Heard::Holds(rows, part.follows == 1)
        }
        Message::Balance(balance) => {
            Heard::Balance { available: balance.available.number(), held: balance.held.number() }
        }
        Message::Close(close) => {
            Heard::Close(CloseReason::from_number(close.reason).expect("a reason"))
        }
        Message::Alive => return None,
        other => panic!("{other:?} is a venue's"),
    })
}
