//! JSON from outside, read strictly: a doubled key at any depth is refused, and an amount is a
//! plain whole number.
//!
//! Two readers of a doubled key may each take another of its values. So none is taken.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A value without doubled keys.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Values).map(Strict)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("JSON without doubled keys")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let Strict(value) = fields.next_value()?;
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a doubled key"));
            }
        }
        Ok(map.into())
    }
}

/// The object in these bytes; `None`: it is no JSON object, it is too deep, or it has a doubled
/// key.
pub(super) fn object(bytes: &[u8]) -> Option<Value> {
    let Strict(value) = serde_json::from_slice(bytes).ok()?;
    value.is_object().then_some(value)
}

/// A text that is not empty.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// A whole number above 0. A float, and a number of more than 19 digits, is none.
pub(super) fn amount(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer)?.as_i64().filter(|units| *units > 0)
}

/// The code of a currency in upper case: three letters.
pub(super) fn currency(value: &Value, pointer: &str) -> Option<String> {
    let text = text(value, pointer)?;
    let letters = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_alphabetic());
    letters.then(|| text.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A doubled key has no meaning, at any depth.
    #[test]
    fn a_doubled_key_is_refused_at_any_depth() {
        for bad in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":{"b":1,"c":2,"b":1}}"#,
            r#"{"a":[{"b":[]},{"b":1,"\u0062":2}]}"#,
            "[]",
            "1",
            "",
            "{",
            r#"{"a":1} x"#,
            r#"{"a":NaN}"#,
        ] {
            assert_eq!(object(bad.as_bytes()), None, "{bad}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
        assert_eq!(object(deep.as_bytes()), None);
        let sound = br#"{"a":1,"b":{"a":[1.5,null,true,"x"]}}"#;
        let plain: Value = serde_json::from_slice(sound).expect("JSON");
        assert_eq!(object(sound), Some(plain));
    }

    #[test]
    fn an_amount_is_a_plain_whole_number_above_zero() {
        let read = |number: &str| {
            let body = format!(r#"{{"amount":{{"total":{number}}}}}"#);
            object(body.as_bytes()).and_then(|value| amount(&value, "/amount/total"))
        };
        assert_eq!(read("1"), Some(1));
        assert_eq!(read("9223372036854775807"), Some(i64::MAX));
        for bad in [
            "0",
            "-1",
            "1.0",
            "1e2",
            "\"1\"",
            "9223372036854775808",
            "10000000000000000000",
            "null",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
