//! The purposes for which money is frozen.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use domain::transfer::Cid;

/// The word for operators among those that may move money out of a purpose.
const OPERATORS: &str = "operators";
/// The longest name of a purpose, bytes.
const NAME_BYTES_MAX: usize = 32;
/// The most purposes.
const PURPOSES_MAX: usize = 64;

/// The section `[holds]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Holds {
    /// The purposes for which money can be frozen.
    #[serde(deserialize_with = "purposes")]
    pub purposes: Purposes,
}

/// A purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// Its number, above 0. The stores and the log have it, so it never changes.
    pub number: u16,
    /// Operators may move money out of it.
    pub operators: bool,
    /// The services that may move money out of it, by owner.
    pub owners: Vec<String>,
}

/// Every purpose by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purposes(BTreeMap<String, Purpose>);

impl Purposes {
    /// The purpose with this name.
    pub fn by_name(&self, name: &str) -> Option<&Purpose> {
        self.0.get(name)
    }

    /// The name of a number; `None` if it was taken out of the configuration.
    pub fn name_of(&self, number: u16) -> Option<&str> {
        let found = self.0.iter().find(|(_, purpose)| purpose.number == number);
        found.map(|(name, _)| name.as_str())
    }

    /// The purposes of a list.
    ///
    /// # Errors
    /// [`PurposeError`] for the first one that is none.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Purposes, PurposeError> {
        let mut purposes = Purposes::default();
        for text in texts {
            let bad = || PurposeError::Form { text: text.to_owned() };
            let (name, rest) = text.split_once('=').ok_or_else(bad)?;
            let (number, owners) = rest.split_once(':').unwrap_or((rest, OPERATORS));
            let plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
            let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain);
            let number = number.parse::<u16>().ok().filter(|number| is_name && *number > 0);
            let number = number.ok_or_else(bad)?;
            let owners: Vec<&str> = owners.split('+').collect();
            if owners.iter().any(|owner| Cid::new(owner).is_none()) {
                return Err(bad());
            }
            if purposes.0.contains_key(name) || purposes.name_of(number).is_some() {
                return Err(PurposeError::Twice { text: text.to_owned() });
            }
            let operators = owners.contains(&OPERATORS);
            let services = owners.into_iter().filter(|owner| *owner != OPERATORS);
            let owners = services.map(str::to_owned).collect();
            purposes.0.insert(name.to_owned(), Purpose { number, operators, owners });
        }
        match purposes.0.len() {
            0..=PURPOSES_MAX => Ok(purposes),
            _ => Err(PurposeError::Many),
        }
    }
}

/// Why a list names no purposes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PurposeError {
    /// Not of the form.
    #[error(
        "{text:?} is not of the form NAME=NUMBER or NAME=NUMBER:OWNER+OWNER, with a name of 1 to \
         {NAME_BYTES_MAX} of A-Z 0-9 _ and a number of 1 to 65535"
    )]
    Form {
        /// As given.
        text: String,
    },
    /// Its name or its number is another one's.
    #[error("{text:?} has the name or the number of an earlier one")]
    Twice {
        /// As given.
        text: String,
    },
    /// Too many.
    #[error("at most {PURPOSES_MAX} purposes")]
    Many,
}

impl fmt::Display for Purposes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        out.write_str(&names.join(", "))
    }
}

/// A list or, from the environment, one text with commas between the purposes.
fn purposes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Purposes, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        List(Vec<String>),
        Text(String),
    }
    let parsed = match Given::deserialize(deserializer) {
        Ok(Given::List(texts)) => Purposes::parse(texts.iter().map(String::as_str)),
        Ok(Given::Text(text)) => {
            Purposes::parse(text.split(',').map(str::trim).filter(|text| !text.is_empty()))
        }
        Err(_) => return Err(D::Error::custom("must be a list of purposes")),
    };
    parsed.map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{assert_refused, load};

    #[test]
    fn a_purpose_has_a_number_and_those_that_may_move_out_of_it() {
        let file = "[holds]\npurposes = [\"DISPUTE=1\", \"ESCROW_2=65535:operators+trade\"]";
        let purposes = load(file, &[]).expect("a configuration").holds.purposes;
        let dispute = Purpose { number: 1, operators: true, owners: Vec::new() };
        assert_eq!(purposes.by_name("DISPUTE"), Some(&dispute));
        let escrow = purposes.by_name("ESCROW_2").expect("the second");
        assert_eq!((escrow.number, escrow.operators), (65_535, true));
        assert_eq!(escrow.owners, ["trade"]);
        assert_eq!((purposes.name_of(65_535), purposes.name_of(2)), (Some("ESCROW_2"), None));
        let given = [("UBSCORE__HOLDS__PURPOSES", "DISPUTE=1, LOAN=3:lender")];
        let purposes = load("", &given).expect("a configuration").holds.purposes;
        assert_eq!(purposes.by_name("LOAN").map(|loan| loan.operators), Some(false));
        assert_eq!(load("", &[]).expect("a configuration").holds, Holds::default());
        let refused = |list: &str, start: &str| {
            assert_refused(&[(&format!("[holds]\npurposes = {list}"), start)]);
        };
        for bad in ["", "A", "A=0", "A=65536", "A=x", "a=1", "A B=1", "=1", "A=1:", "A=1:a b"] {
            refused(&format!("[\"{bad}\"]"), "holds.purposes: ");
        }
        refused("[\"A=1\", \"A=2\"]", "holds.purposes: \"A=2\" has the name or the number");
        refused("[\"A=1\", \"B=1\"]", "holds.purposes: \"B=1\" has the name or the number");
        refused("7", "holds.purposes: must be a list of purposes");
    }
}
