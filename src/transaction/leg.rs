//! A leg of a transaction, and the two places of it.
//!
//! A leg that touches both stores stands in both branches. Each store has its own view of it: the
//! place in the other store is its outside, see [`LegPlace::in_store`].
//!
//! In PostgreSQL a place in the store of the branch is a plain number, the user. Every other place
//! is `{"account":"SPOT","user":1002}`, with `"purpose":1` if it is frozen, or `"OUTSIDE"`. A
//! special place is `{"account":"FUNDING","user":7,"special":true}` in every branch: its row fixes
//! that.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use domain::account::UserId;
use domain::asset::AssetId;
use domain::posting::{Leg, Place};
use domain::transfer::Participant;

use super::Party;

/// The place outside of both stores, on the wire and in PostgreSQL.
pub const OUTSIDE: &str = "OUTSIDE";

/// A place that a leg takes from or brings to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LegPlace {
    /// The available balance of a user.
    Available {
        /// The store that has it.
        store: Participant,
        /// The user.
        user: UserId,
    },
    /// The amount of a user that is frozen for one purpose.
    Frozen {
        /// The store that has it.
        store: Participant,
        /// The user.
        user: UserId,
        /// The purpose, 1..=65535.
        purpose: u16,
    },
    /// The available balance of a user on Funding, which was special when the round was accepted.
    /// Nothing of it is apart or arriving: it is booked at the confirm, and may be below zero.
    Special {
        /// The user.
        user: UserId,
    },
    /// Outside of both stores.
    Outside,
}

impl LegPlace {
    /// The store that has it; `None` for the outside.
    pub fn store(self) -> Option<Participant> {
        match self {
            LegPlace::Available { store, .. } | LegPlace::Frozen { store, .. } => Some(store),
            LegPlace::Special { .. } => Some(Participant::Funding),
            LegPlace::Outside => None,
        }
    }

    /// The user of it; `None` for the outside.
    pub fn user(self) -> Option<UserId> {
        match self {
            LegPlace::Available { user, .. }
            | LegPlace::Frozen { user, .. }
            | LegPlace::Special { user } => Some(user),
            LegPlace::Outside => None,
        }
    }

    /// The user, if this is a place of `store`.
    pub fn user_in(self, store: Participant) -> Option<UserId> {
        self.user().filter(|_| self.store() == Some(store))
    }

    /// The place as `store` sees it: every place that is not its own is outside, and so is a
    /// special one, of which nothing is apart or arriving.
    pub fn in_store(self, store: Participant) -> Place {
        match self {
            LegPlace::Available { store: of, user } if of == store => {
                Place::Available(user.number())
            }
            LegPlace::Frozen { store: of, user, purpose } if of == store => {
                Place::Frozen { user: user.number(), purpose }
            }
            LegPlace::Available { .. }
            | LegPlace::Frozen { .. }
            | LegPlace::Special { .. }
            | LegPlace::Outside => Place::Outside,
        }
    }

    /// The place as JSON in a branch of `store`, see the module.
    pub fn value(self, store: Participant) -> Value {
        let named = |store: Participant, user: UserId, purpose, special| {
            let account = store.account().to_owned();
            let place = NamedPlace { account, user: user.number(), purpose, special };
            serde_json::to_value(place).expect("plain fields")
        };
        match self {
            LegPlace::Available { store: of, user } if of == store => user.number().into(),
            LegPlace::Available { store, user } => named(store, user, None, false),
            LegPlace::Frozen { store, user, purpose } => named(store, user, Some(purpose), false),
            LegPlace::Special { user } => named(Participant::Funding, user, None, true),
            LegPlace::Outside => OUTSIDE.into(),
        }
    }

    /// The place of a JSON in a branch of `store`, see the module.
    fn from_value(value: &Value, store: Participant) -> Result<LegPlace, LegError> {
        let bad = || LegError::Place { place: value.to_string() };
        match value {
            Value::Number(number) => {
                let user = number.as_u64().and_then(UserId::new).ok_or_else(bad)?;
                Ok(LegPlace::Available { store, user })
            }
            Value::String(word) if word == OUTSIDE => Ok(LegPlace::Outside),
            Value::Object(_) => {
                let NamedPlace { account, user, purpose, special } =
                    NamedPlace::deserialize(value)?;
                let stores = [Participant::Funding, Participant::Spot];
                let found = stores.into_iter().find(|store| store.account() == account);
                let (store, user) = (found.ok_or_else(bad)?, UserId::new(user).ok_or_else(bad)?);
                match (purpose, special, store) {
                    (None, true, Participant::Funding) => Ok(LegPlace::Special { user }),
                    (Some(0), ..) | (_, true, _) => Err(bad()),
                    (None, ..) => Ok(LegPlace::Available { store, user }),
                    (Some(purpose), ..) => Ok(LegPlace::Frozen { store, user, purpose }),
                }
            }
            _ => Err(bad()),
        }
    }
}

/// One movement between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionLeg {
    /// The place that pays.
    pub from: LegPlace,
    /// The place that is paid.
    pub to: LegPlace,
    /// The asset.
    pub asset: AssetId,
    /// Smallest units, above 0.
    pub amount: u64,
}

impl TransactionLeg {
    /// Whether one of its places is in `store`, so that it stands in the store's branch.
    pub fn is_in(&self, store: Participant) -> bool {
        [self.from, self.to].into_iter().any(|place| place.store() == Some(store))
    }

    /// The leg as `store` sees it, see [`LegPlace::in_store`].
    pub fn in_store(&self, store: Participant) -> Leg {
        let (from, to) = (self.from.in_store(store), self.to.in_store(store));
        Leg { from, to, asset: self.asset.0, amount: self.amount }
    }
}

/// Legs in PostgreSQL are none that the service writes.
#[derive(Debug, thiserror::Error)]
pub enum LegError {
    /// The text is no list of legs.
    #[error("the legs cannot be read")]
    Json(#[from] serde_json::Error),
    /// A place is none of a user, or of no store.
    #[error("no leg has the place {place}")]
    Place {
        /// As it stands there.
        place: String,
    },
    /// The branch is of a service.
    #[error("the branch of a service has legs")]
    Service,
}

/// The legs of a branch as JSON, see the module.
pub fn write_legs(party: &Party, legs: &[TransactionLeg]) -> String {
    let store = store_of(party);
    let columns = |leg: &TransactionLeg| LegColumns {
        from: leg.from.value(store),
        to: leg.to.value(store),
        asset: leg.asset.0,
        amount: leg.amount,
    };
    let columns: Vec<LegColumns> = legs.iter().map(columns).collect();
    serde_json::to_string(&columns).expect("plain fields")
}

/// The legs of a branch from their JSON.
///
/// # Errors
/// [`LegError`]: no service wrote this.
pub fn read_legs(party: &Party, text: &str) -> Result<Vec<TransactionLeg>, LegError> {
    let columns: Vec<LegColumns> = serde_json::from_str(text)?;
    if matches!(party, Party::Service(_)) && !columns.is_empty() {
        return Err(LegError::Service);
    }
    let store = store_of(party);
    let leg = |columns: LegColumns| {
        let place = |value| LegPlace::from_value(value, store);
        let (from, to) = (place(&columns.from)?, place(&columns.to)?);
        let (asset, amount) = (AssetId(columns.asset), columns.amount);
        Ok(TransactionLeg { from, to, asset, amount })
    };
    columns.into_iter().map(leg).collect()
}

/// The store of plain numbers. The branch of a service has no legs, so its answer is not used.
fn store_of(party: &Party) -> Participant {
    match party {
        Party::Store(store) => *store,
        Party::Service(_) => Participant::Funding,
    }
}

/// A leg as JSON: plain where possible, so that people can read it in PostgreSQL.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LegColumns {
    from: Value,
    to: Value,
    asset: u32,
    amount: u64,
}

/// A place that a plain number cannot name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedPlace {
    account: String,
    user: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    purpose: Option<u16>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    special: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNDING: Participant = Participant::Funding;
    const SPOT: Participant = Participant::Spot;

    fn available(store: Participant, user: u64) -> LegPlace {
        LegPlace::Available { store, user: UserId::new(user).expect("a user") }
    }

    fn frozen(store: Participant, user: u64, purpose: u16) -> LegPlace {
        LegPlace::Frozen { store, user: UserId::new(user).expect("a user"), purpose }
    }

    const SPECIAL: &str = r#"{"account":"FUNDING","user":7,"special":true}"#;

    fn special(user: u64) -> LegPlace {
        LegPlace::Special { user: UserId::new(user).expect("a user") }
    }

    fn leg(from: LegPlace, to: LegPlace) -> TransactionLeg {
        TransactionLeg { from, to, asset: AssetId(3), amount: 250 }
    }

    /// Goal: PostgreSQL has legs that people can read; those within one store as they always were.
    #[test]
    fn a_leg_in_postgresql_is_readable() {
        let of_user = available(FUNDING, 1001);
        let cases = [
            (FUNDING, leg(of_user, available(FUNDING, 1002)), "1001", "1002"),
            (
                FUNDING,
                leg(of_user, available(SPOT, 1002)),
                "1001",
                r#"{"account":"SPOT","user":1002}"#,
            ),
            (
                SPOT,
                leg(of_user, available(SPOT, 1002)),
                r#"{"account":"FUNDING","user":1001}"#,
                "1002",
            ),
            (FUNDING, leg(of_user, LegPlace::Outside), "1001", r#""OUTSIDE""#),
            (
                FUNDING,
                leg(of_user, frozen(FUNDING, 1001, 7)),
                "1001",
                r#"{"account":"FUNDING","user":1001,"purpose":7}"#,
            ),
            (FUNDING, leg(of_user, special(7)), "1001", SPECIAL),
            (SPOT, leg(available(SPOT, 1001), special(7)), "1001", SPECIAL),
        ];
        for (store, leg, from, to) in cases {
            let party = Party::Store(store);
            let text = write_legs(&party, &[leg]);
            let want = format!(r#"[{{"from":{from},"to":{to},"asset":3,"amount":250}}]"#);
            let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
            assert_eq!(value(&text), value(&want));
            assert_eq!(read_legs(&party, &text).expect("legs"), [leg]);
        }
    }

    #[test]
    fn a_leg_that_no_service_writes_is_refused() {
        let party = Party::Store(FUNDING);
        let text = |from: &str| format!(r#"[{{"from":{from},"to":1002,"asset":3,"amount":250}}]"#);
        assert!(read_legs(&party, &text("1001")).is_ok());
        assert!(read_legs(&Party::Service("bank".to_owned()), &text("1001")).is_err());
        for from in [
            "0",
            "-1",
            "1.5",
            "null",
            r#""INSIDE""#,
            "[1001]",
            r#"{"account":"MARGIN","user":1001}"#,
            r#"{"account":"SPOT","user":0}"#,
            r#"{"account":"SPOT","user":1001,"purpose":0}"#,
            r#"{"account":"SPOT","user":1001,"purpose":65536}"#,
            r#"{"account":"SPOT","user":1001,"special":true}"#,
            r#"{"account":"FUNDING","user":1001,"purpose":7,"special":true}"#,
            r#"{"account":"SPOT","user":1001,"more":1}"#,
            r#"{"user":1001}"#,
        ] {
            assert!(read_legs(&party, &text(from)).is_err(), "{from}");
        }
    }

    /// Goal: each store sees its own place, and the other store as its outside.
    #[test]
    fn a_leg_between_the_stores_is_in_both() {
        let leg = leg(available(FUNDING, 1001), frozen(SPOT, 1002, 4));
        let of_funding = leg.in_store(FUNDING);
        assert_eq!((of_funding.from, of_funding.to), (Place::Available(1001), Place::Outside));
        let of_spot = leg.in_store(SPOT);
        let to = Place::Frozen { user: 1002, purpose: 4 };
        assert_eq!((of_spot.from, of_spot.to), (Place::Outside, to));
        assert!(leg.is_in(FUNDING) && leg.is_in(SPOT));
        let payout = TransactionLeg { to: LegPlace::Outside, ..leg };
        assert!(payout.is_in(FUNDING) && !payout.is_in(SPOT));
    }
}
