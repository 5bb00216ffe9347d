//! Everything that the simulator knows, as lines of JSON that are appended and synced.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The format of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Format {
    WeChat,
    Card,
}

/// An order of WeChat, or an intent of Stripe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SimOrder {
    pub(super) format: Format,
    /// Its key here: the merchant number, or the number of the intent.
    pub(super) key: String,
    pub(super) merchant_no: String,
    pub(super) amount: i64,
    pub(super) currency: String,
    pub(super) proof: String,
    /// The address of callbacks; empty: that of the format.
    pub(super) callback_url: String,
    /// The URL of the code, or the client secret.
    pub(super) pay: String,
    pub(super) created_s: i64,
    /// 0: no end.
    pub(super) expires_s: i64,
    pub(super) is_closed: bool,
    pub(super) payments: Vec<SimPayment>,
}

/// A payment of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SimPayment {
    pub(super) trade_no: String,
    pub(super) amount: i64,
    pub(super) currency: String,
    /// The part of the price that the merchant bears.
    pub(super) borne: i64,
    pub(super) at_s: i64,
    pub(super) returns: Vec<SimReturn>,
}

/// A refund or a chargeback.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SimReturn {
    /// The channel's number.
    pub(super) number: String,
    /// The merchant's number; empty: made at the channel.
    pub(super) return_no: String,
    pub(super) amount: i64,
    pub(super) at_s: i64,
    /// SUCCESS, PROCESSING, CLOSED, ABNORMAL, TAKEN or GIVEN_BACK.
    pub(super) status: String,
}

/// A callback on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) number: u64,
    pub(super) format: Format,
    pub(super) url: String,
    /// The kind of the event.
    pub(super) event: String,
    /// The object of the event, JSON; not sealed yet.
    pub(super) object: String,
    pub(super) merchant_no: String,
    /// The time of the event: the same for each repeat.
    pub(super) at_s: i64,
}

/// One line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Line {
    Made(SimOrder),
    Paid {
        key: String,
        payment: SimPayment,
    },
    Closed {
        key: String,
    },
    Returned {
        trade_no: String,
        back: SimReturn,
    },
    /// A return has another status.
    Turned {
        number: String,
        status: String,
    },
    /// The answer that an idempotency key repeats.
    Stored {
        key: String,
        status: u16,
        body: String,
    },
    Sent(Parcel),
    Arrived {
        number: u64,
    },
    /// The address of callbacks of Stripe.
    CardUrl {
        url: String,
    },
}

/// The books, and their file.
pub(super) struct Books {
    file: File,
    pub(super) orders: BTreeMap<String, SimOrder>,
    pub(super) stored: BTreeMap<String, (u16, String)>,
    pub(super) parcels: BTreeMap<u64, Parcel>,
    /// Every parcel, for a replay.
    pub(super) sent: Vec<Parcel>,
    pub(super) card_url: String,
}

impl Books {
    /// Reads the file, or makes it. A last line that a kill cut off is dropped.
    pub(super) fn open(path: &Path) -> io::Result<Books> {
        let options = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut books = Books {
            file: options,
            orders: BTreeMap::new(),
            stored: BTreeMap::new(),
            parcels: BTreeMap::new(),
            sent: Vec::new(),
            card_url: String::new(),
        };
        let (mut reader, mut text, mut sound) =
            (BufReader::new(File::open(path)?), String::new(), 0);
        while reader.read_line(&mut text)? > 0 {
            if !text.ends_with('\n') {
                break;
            }
            sound += text.len() as u64;
            books.apply(serde_json::from_str(&text)?);
            text.clear();
        }
        books.file.set_len(sound)?;
        Ok(books)
    }

    /// Writes a line, syncs it, and applies it.
    pub(super) fn write(&mut self, line: Line) {
        let mut text = serde_json::to_string(&line).expect("plain values");
        text.push('\n');
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.expect("a simulator without its disk has no answer");
        self.apply(line);
    }

    /// Puts a callback on its way.
    pub(super) fn send(&mut self, order: &SimOrder, event: &str, object: String, at_s: i64) {
        let url = match order.format {
            Format::WeChat => order.callback_url.clone(),
            Format::Card => self.card_url.clone(),
        };
        if !url.is_empty() {
            let (number, event) = (self.sent.len() as u64, event.to_owned());
            let (format, merchant_no) = (order.format, order.merchant_no.clone());
            let parcel = Parcel { number, format, url, event, object, merchant_no, at_s };
            self.write(Line::Sent(parcel));
        }
    }

    /// The payment with a number, and its order.
    pub(super) fn payment(&self, trade_no: &str) -> Option<(&SimOrder, &SimPayment)> {
        let mut all = self.payments();
        all.find(|(_, payment)| payment.trade_no == trade_no)
    }

    /// Every payment with its order.
    pub(super) fn payments(&self) -> impl Iterator<Item = (&SimOrder, &SimPayment)> {
        self.orders.values().flat_map(|order| order.payments.iter().map(move |paid| (order, paid)))
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Made(order) => drop(self.orders.insert(order.key.clone(), order)),
            Line::Paid { key, payment } => {
                self.orders.get_mut(&key).expect("made before").payments.push(payment);
            }
            Line::Closed { key } => {
                self.orders.get_mut(&key).expect("made before").is_closed = true;
            }
            Line::Returned { trade_no, back } => {
                for payment in self.orders.values_mut().flat_map(|order| &mut order.payments) {
                    if payment.trade_no == trade_no {
                        payment.returns.push(back.clone());
                    }
                }
            }
            Line::Turned { number, status } => {
                let payments = self.orders.values_mut().flat_map(|order| &mut order.payments);
                for back in payments.flat_map(|payment| &mut payment.returns) {
                    if back.number == number {
                        back.status.clone_from(&status);
                    }
                }
            }
            Line::Stored { key, status, body } => drop(self.stored.insert(key, (status, body))),
            Line::Sent(parcel) => {
                self.sent.push(parcel.clone());
                self.parcels.insert(parcel.number, parcel);
            }
            Line::Arrived { number } => drop(self.parcels.remove(&number)),
            Line::CardUrl { url } => self.card_url = url,
        }
    }
}

impl SimPayment {
    /// The sum that has been given back, or is on its way.
    pub(super) fn returned(&self) -> i64 {
        let counts = |back: &&SimReturn| !["CLOSED", "GIVEN_BACK"].contains(&&*back.status);
        self.returns.iter().filter(counts).map(|back| back.amount).sum()
    }
}
