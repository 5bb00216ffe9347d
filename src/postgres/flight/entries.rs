//! The entries of a journal row: the changes of one flight to transfers and balances.
//!
//! ```text
//!   row.entries:  version (1 byte) | entries (postcard) | CRC-32 (4 bytes, little-endian)
//!   CRC-32 of:    shard (4 bytes) | flight (8 bytes) | version | entries
//! ```
//!
//! The checksum covers the key of the row, so that bytes of another row are found too. A flight
//! without an entry has no bytes at all. The entries are a `Vec<Entry>` in the format of postcard
//! (<https://postcard.jamesmunns.com/wire-format>): integers are varints, signed ones in zigzag
//! order, and a variant is its number below. A new field or variant takes a new version.
//!
//! Version 1 has no [`Entry::Held`]. A row is of version 2 only if it has one, so that a version of
//! this program from before holds reads all other rows. The same holds of version 3 and
//! [`Entry::Recharged`].

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Flight;
use super::recharged::RechargeChange;
use domain::account::UserId;
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::transfer::{Op, State};

/// The version of a row without an act on a hold.
const VERSION: u8 = 1;
/// The version of a row with such an act.
const VERSION_HOLDS: u8 = 2;
/// The version of a row with a change of a recharge.
const VERSION_RECHARGES: u8 = 3;
/// The bytes of the checksum.
const CHECKSUM_BYTES: usize = 4;

/// One thing that a flight did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Took a transfer through states: an event. Its id is the row's `event_first` plus the number
    /// of events before it.
    Passed {
        /// The transfer's order number.
        order_number: u64,
        /// The owner.
        user: u64,
        /// The numbers of the states, in the order passed: [`State::number`].
        states: Vec<i16>,
    },
    /// Decided an operation of Funding.
    Posted {
        /// Of the transfer, or of the external operation.
        order_number: u64,
        /// [`Op::number`]: 1 to 3 of a transfer, 4 and 5 external.
        op: u8,
        /// The owner of the account.
        user: u64,
        /// [`AssetId`].
        asset: u32,
        /// The change of the available balance, smallest units. 0: refused, or a tool has written
        /// down an operation that the balance has already.
        available: i128,
        /// The change of the frozen balance, smallest units.
        frozen: i128,
        /// The version of the balance behind the flight. 0: there is no balance.
        version: u64,
        /// The number of the [`Code`] of a refusal.
        code: Option<u16>,
    },
    /// Decided an act on a hold of Funding.
    Held {
        /// Of the hold's transaction.
        order_number: u64,
        /// The hold.
        key: String,
        /// [`HoldAct::number`].
        act: u8,
        /// The owner of the account.
        user: u64,
        /// [`AssetId`].
        asset: u32,
        /// The change of the available balance, smallest units.
        available: i128,
        /// The change of the frozen balance, smallest units.
        frozen: i128,
        /// The version of the balance behind the flight. 0: there is no balance.
        version: u64,
        /// The number of the [`Code`] of a refusal.
        code: Option<u16>,
    },
    /// Changed a recharge, as its user is told: an event too.
    Recharged {
        /// Of the credit; 0 for any other change.
        order_number: u64,
        /// The owner.
        user: u64,
        /// The order, or 0.
        recharge: u128,
        /// The payment, or 0.
        payment: u128,
        /// [`RechargeChange`].
        change: u8,
    },
}

impl Entry {
    /// The owner.
    pub fn user(&self) -> Option<UserId> {
        let (Entry::Passed { user, .. }
        | Entry::Posted { user, .. }
        | Entry::Held { user, .. }
        | Entry::Recharged { user, .. }) = self;
        UserId::new(*user)
    }

    /// Whether it is an event, and has an id.
    pub fn is_event(&self) -> bool {
        matches!(self, Entry::Passed { .. } | Entry::Recharged { .. })
    }

    /// The order number.
    pub fn order_number(&self) -> u64 {
        let (Entry::Passed { order_number, .. }
        | Entry::Posted { order_number, .. }
        | Entry::Held { order_number, .. }
        | Entry::Recharged { order_number, .. }) = self;
        *order_number
    }
}

/// The bytes of a journal row are not entries of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// Too few bytes, or another checksum.
    #[error("the checksum of the entries is wrong")]
    Checksum,
    /// A later version of this program wrote it.
    #[error("entries of version {0} are not known")]
    Version(u8),
    /// The checksum is right, and the contents are none.
    #[error("entry {index}: {what}")]
    Content {
        /// Of which entry, from 0.
        index: usize,
        /// The reason.
        what: &'static str,
    },
}

/// The entries of a flight.
pub fn of(flight: &Flight) -> Vec<Entry> {
    let balances = flight.balances.iter();
    let versions: HashMap<_, _> = balances
        .map(|row| {
            let stands = row.after.or(row.before);
            ((row.user, row.asset), stands.map_or(0, |balance| balance.version))
        })
        .collect();
    let passed = flight.events().map(|(_, passed, transfer)| Entry::Passed {
        order_number: transfer.intent.order_number,
        user: transfer.intent.user.number(),
        states: passed.states.iter().map(|state| state.number()).collect(),
    });
    let posted = flight.operations().map(|(transfer, done)| {
        let intent = &transfer.intent;
        let body = (intent.order_number, done.op, intent.user, intent.asset);
        (body, intent.amount, done.decision)
    });
    let external = flight.externals.iter().map(|row| {
        let external = &row.external;
        let body = (external.order_number, external.op, external.user, external.asset);
        (body, external.amount, row.decision)
    });
    let posted =
        posted.chain(external).map(|((order_number, op, user, asset), amount, decision)| {
            Entry::Posted {
                order_number,
                op: op.number(),
                user: user.number(),
                asset: asset.0,
                available: op.effect(decision, amount.units()),
                frozen: 0,
                version: versions.get(&(user, asset)).copied().unwrap_or(0),
                code: decision.code().map(|code| code as u16),
            }
        });
    let held = flight.acts.iter().map(|acted| {
        let HoldOrder { key, order_number, user, asset, act, .. } = &acted.order;
        Entry::Held {
            order_number: *order_number,
            key: key.as_str().to_owned(),
            act: act.number(),
            user: user.number(),
            asset: asset.0,
            available: acted.available,
            frozen: acted.frozen,
            version: versions.get(&(*user, *asset)).copied().unwrap_or(0),
            code: acted.decision.code().map(|code| code as u16),
        }
    });
    let recharged = flight.recharged.notices.iter().map(|notice| Entry::Recharged {
        order_number: notice.order_number,
        user: notice.user.number(),
        recharge: notice.recharge,
        payment: notice.payment,
        change: notice.change as u8,
    });
    passed.chain(posted).chain(held).chain(recharged).collect()
}

/// The bytes of entries, for the row of this key.
pub fn encode(shard: u32, flight: u64, entries: &[Entry]) -> Vec<u8> {
    if entries.is_empty() {
        return Vec::new();
    }
    let bytes = vec![version_of(entries)];
    let mut bytes = postcard::to_extend(entries, bytes).expect("a Vec takes all bytes");
    bytes.extend(checksum(shard, flight, &bytes).to_le_bytes());
    bytes
}

/// The entries in the bytes of the row of this key.
///
/// # Errors
/// [`Damaged`].
pub fn decode(shard: u32, flight: u64, bytes: &[u8]) -> Result<Vec<Entry>, Damaged> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let covered = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|covered| *covered > 0);
    let (body, sum) = bytes.split_at(covered.ok_or(Damaged::Checksum)?);
    if checksum(shard, flight, body).to_le_bytes() != *sum {
        return Err(Damaged::Checksum);
    }
    let version = body[0];
    if ![VERSION, VERSION_HOLDS, VERSION_RECHARGES].contains(&version) {
        return Err(Damaged::Version(version));
    }
    let read = postcard::take_from_bytes::<Vec<Entry>>(&body[1..]);
    match read {
        // Its own bytes would be others: a version has one form.
        Ok((entries, [])) if version_of(&entries) != version => {
            Err(Damaged::Content { index: 0, what: "it is of another version" })
        }
        Ok((entries, [])) => match entries.iter().enumerate().find_map(wrong) {
            None => Ok(entries),
            Some(damage) => Err(damage),
        },
        Ok(_) => Err(Damaged::Content { index: 0, what: "bytes are left over" }),
        Err(_) => Err(Damaged::Content { index: 0, what: "the bytes are no entries" }),
    }
}

/// The version of a row with these entries: the lowest one that has all of them.
fn version_of(entries: &[Entry]) -> u8 {
    let version = |entry: &Entry| match entry {
        Entry::Passed { .. } | Entry::Posted { .. } => VERSION,
        Entry::Held { .. } => VERSION_HOLDS,
        Entry::Recharged { .. } => VERSION_RECHARGES,
    };
    entries.iter().map(version).max().unwrap_or(VERSION)
}

/// A number in an entry that means nothing.
fn wrong((index, entry): (usize, &Entry)) -> Option<Damaged> {
    let known = |states: &[i16]| states.iter().all(|state| State::from_number(*state).is_some());
    let what = match entry {
        entry if entry.user().is_none() => "no user has this number",
        Entry::Passed { states, .. } if states.is_empty() || !known(states) => "not a state",
        Entry::Posted { op, .. } if Op::from_number(*op).is_none() => "not an operation",
        Entry::Posted { code: Some(code), .. } if Code::from_number(*code).is_none() => {
            "not a code"
        }
        Entry::Held { act, .. } if HoldAct::name_of(*act).is_none() => "not an act on a hold",
        Entry::Held { key, .. } if HoldKey::new(key).is_none() => "not the key of a hold",
        Entry::Recharged { change, .. } if RechargeChange::name_of(*change).is_none() => {
            "not a change of a recharge"
        }
        Entry::Recharged { recharge: 0, payment: 0, .. } => "a recharge without a name",
        Entry::Held { code: Some(code), .. } if Code::from_number(*code).is_none() => "not a code",
        Entry::Posted { asset, .. } | Entry::Held { asset, .. }
            if AssetId(*asset) == AssetId(0) =>
        {
            "no asset has this number"
        }
        _ => return None,
    };
    Some(Damaged::Content { index, what })
}

fn checksum(shard: u32, flight: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&shard.to_le_bytes());
    hasher.update(&flight.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry::Passed { order_number: 3 << 40 | 7, user: 1_001, states: vec![0, 10, 20] },
            Entry::Posted {
                order_number: 3 << 40 | 7,
                op: 1,
                user: 1_001,
                asset: 3,
                available: -250,
                frozen: 0,
                version: 9,
                code: None,
            },
            Entry::Passed { order_number: 3 << 40 | 8, user: 5, states: vec![0, 10, -10] },
            Entry::Posted {
                order_number: 3 << 40 | 8,
                op: 1,
                user: 5,
                asset: 3,
                available: 0,
                frozen: 0,
                version: 0,
                code: Some(Code::InsufficientBalance as u16),
            },
        ]
    }

    /// Goal: the format stays as it is once it is on disks.
    #[test]
    fn the_bytes_of_version_1_stand() {
        let bytes = encode(2, 77, &entries());
        let text: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text.concat(), GOLDEN);
        assert_eq!(decode(2, 77, &bytes), Ok(entries()));
        assert_eq!(encode(2, 77, &[]), Vec::<u8>::new());
        assert_eq!(decode(2, 77, &[]), Ok(Vec::new()));
    }

    fn held() -> Entry {
        Entry::Held {
            order_number: 3 << 40 | 9,
            key: "01K:5:3".to_owned(),
            act: 2,
            user: 5,
            asset: 3,
            available: 7,
            frozen: -60,
            version: 4,
            code: None,
        }
    }

    /// Goal: a row with a hold is of version 2, and stays as it is. The entries before it are as in
    /// version 1, and no version has the entries of the other one.
    #[test]
    fn the_bytes_of_version_2_stand() {
        let entries = [entries(), vec![held()]].concat();
        let bytes = encode(2, 77, &entries);
        let text: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text.concat(), GOLDEN_2);
        assert_eq!(decode(2, 77, &bytes), Ok(entries.clone()));
        let other = |version: u8, bytes: &[u8]| {
            let body = [&[version][..], &bytes[1..bytes.len() - 4]].concat();
            [&body[..], &checksum(2, 77, &body).to_le_bytes()].concat()
        };
        let plain = encode(2, 77, &entries[..4]);
        let named = Err(Damaged::Content { index: 0, what: "it is of another version" });
        assert_eq!(decode(2, 77, &other(1, &bytes)), named);
        assert_eq!(decode(2, 77, &other(2, &plain)), named);
    }

    /// Goal: a row with a change of a recharge is of version 3, and stays as it is.
    #[test]
    fn the_bytes_of_version_3_stand() {
        let paid = Entry::Recharged {
            order_number: 3 << 40 | 10,
            user: 1_001,
            recharge: 77 << 70,
            payment: 5,
            change: RechargeChange::Paid as u8,
        };
        let entries = [entries(), vec![held(), paid]].concat();
        let bytes = encode(2, 77, &entries);
        let text: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text.concat(), GOLDEN_3);
        assert_eq!(decode(2, 77, &bytes), Ok(entries));
    }

    const GOLDEN_3: &str = "030600878080808060e907030014280187808080806001e90703f3030009000088808080806005030014\
                            13018880808080600105030000000118028980808080600730314b3a353a330205030e770400038a8080\
                            808060e907808080808080808080804d0502b47300e9";

    const GOLDEN_2: &str = "020500878080808060e907030014280187808080806001e90703f3030009000088808080806005030014\
                            13018880808080600105030000000118028980808080600730314b3a353a330205030e770400dcae7faf";

    const GOLDEN: &str = "010400878080808060e907030014280187808080806001e90703f303000900\
                          008880808080600503001413018880808080600105030000000118e17376d9";

    /// Goal: no changed bit, no cut, and no row of another key is taken for entries.
    #[test]
    fn damage_is_found() {
        let bytes = encode(2, 77, &entries());
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(2, 77, &changed), Err(Damaged::Checksum), "bit {bit}");
        }
        for length in 1..bytes.len() {
            assert_eq!(decode(2, 77, &bytes[..length]), Err(Damaged::Checksum), "{length} bytes");
        }
        assert_eq!(decode(3, 77, &bytes), Err(Damaged::Checksum));
        assert_eq!(decode(2, 78, &bytes), Err(Damaged::Checksum));
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        let code = proptest::sample::select(Code::ALL.to_vec()).prop_map(|code| code as u16);
        let (user, states) = (1..=u64::MAX >> 1, 0..State::ALL.len());
        let passed = (any::<u64>(), user.clone(), proptest::collection::vec(states, 1..5));
        let posted = (any::<u64>(), 1..=5_u8, user, 1..=u32::MAX, any::<(i64, i64)>());
        let posted = (posted, any::<u64>(), proptest::option::of(code));
        prop_oneof![
            passed.prop_map(|(order_number, user, states)| {
                let states = states.into_iter().map(|index| State::ALL[index].number()).collect();
                Entry::Passed { order_number, user, states }
            }),
            (any::<u64>(), 1..=3_u8, any::<(i64, i64)>()).prop_map(
                |(order_number, act, (a, b))| {
                    let (available, frozen) = (i128::from(a), i128::from(b));
                    let key = "k:1".to_owned();
                    let (user, asset, version, code) = (7, 3, 1, None);
                    Entry::Held {
                        order_number,
                        key,
                        act,
                        user,
                        asset,
                        available,
                        frozen,
                        version,
                        code,
                    }
                }
            ),
            posted.prop_map(|((order_number, op, user, asset, (a, b)), version, code)| {
                let (available, frozen) = (i128::from(a) * 7, i128::from(b));
                Entry::Posted { order_number, op, user, asset, available, frozen, version, code }
            }),
        ]
    }

    proptest! {
        #[test]
        fn entries_are_read_as_they_were_written(
            entries in proptest::collection::vec(any_entry(), 0..20), shard: u32, flight: u64,
        ) {
            prop_assert_eq!(decode(shard, flight, &encode(shard, flight, &entries)), Ok(entries));
        }

        #[test]
        fn any_bytes_are_entries_or_refused(body: Vec<u8>, shard: u32, flight: u64) {
            prop_assert!(body.is_empty() || decode(shard, flight, &body).is_err());
            let body = [&[VERSION][..], &body].concat();
            let row = [&body[..], &checksum(shard, flight, &body).to_le_bytes()].concat();
            if let Ok(entries) = decode(shard, flight, &row) {
                prop_assert_eq!(decode(shard, flight, &encode(shard, flight, &entries)), Ok(entries));
            }
        }
    }

    /// Goal: contents with a right checksum that mean nothing are named.
    #[test]
    fn contents_without_a_meaning_are_named() {
        let of_version_4 = {
            let mut bytes = vec![4, 0];
            bytes.extend(checksum(0, 1, &bytes).to_le_bytes());
            bytes
        };
        assert_eq!(decode(0, 1, &of_version_4), Err(Damaged::Version(4)));
        let mut state = entries();
        let Entry::Passed { states, .. } = &mut state[2] else { unreachable!("as written above") };
        states.push(55);
        let named = Err(Damaged::Content { index: 2, what: "not a state" });
        assert_eq!(decode(0, 1, &encode(0, 1, &state)), named);
    }
}
