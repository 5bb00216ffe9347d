//! Lists of names in the configuration.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A list of names or, from the environment, one text with commas between the names.
pub(super) fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        List(Vec<String>),
        Text(String),
    }
    match Given::deserialize(deserializer) {
        Ok(Given::List(names)) => Ok(names),
        Ok(Given::Text(text)) => {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            Ok(names.map(str::to_owned).collect())
        }
        Err(_) => Err(D::Error::custom("must be a list of names")),
    }
}
