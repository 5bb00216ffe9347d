//! The bodies of requests about transactions. An unknown, missing or repeated field and a wrong
//! type are refused, at every depth.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    Array, ArrayBuilder, Object, ObjectBuilder, OneOfBuilder, Ref, Schema, Type,
};

use crate::transaction::{Decider, OUTSIDE};

/// A transaction of one round. The coordinator decides, or the last participant.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TransactionRequest)]
pub struct TransactionDraft {
    /// The service's own id. Requests with the same id are one transaction.
    #[schema(pattern = "^[A-Za-z0-9_.:-]{1,64}$", example = "envelope-1")]
    pub tx_id: String,
    /// The movements.
    #[serde(deserialize_with = "objects")]
    #[schema(schema_with = legs_schema)]
    pub legs: Vec<LegDraft>,
    /// Services that try first, and then confirm or cancel; each name once.
    #[serde(default, deserialize_with = "objects")]
    #[schema(schema_with = services_schema)]
    pub participants: Vec<ServiceDraft>,
    /// The service without a try: it is asked last, and its answer decides.
    #[serde(default, deserialize_with = "object_or_null")]
    pub last: Option<ServiceDraft>,
    /// Services that are told once the transaction is DONE, and have no say; each name once.
    #[serde(default)]
    #[schema(max_items = 8)]
    pub followers: Vec<String>,
    /// How long to wait for the end, ms. Default: `http.transfer_wait_ms`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30_000)]
    pub wait_ms: Option<u32>,
}

/// One round of a transaction. The first one has its decider.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RoundRequest)]
pub struct PrepareDraft {
    /// If present, must be the one of the path.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z0-9_.:-]{1,64}$")]
    pub tx_id: Option<String>,
    /// The number of the round, 1 first.
    #[schema(minimum = 1, maximum = 8, example = 1)]
    pub round: u64,
    /// The movements of this round.
    #[serde(deserialize_with = "objects")]
    #[schema(schema_with = legs_schema)]
    pub legs: Vec<LegDraft>,
    /// Services that try first, and then confirm or cancel; each name once.
    #[serde(default, deserialize_with = "objects")]
    #[schema(schema_with = services_schema)]
    pub participants: Vec<ServiceDraft>,
    /// Of the first round only: the service without a try.
    #[serde(default, deserialize_with = "object_or_null")]
    pub last: Option<ServiceDraft>,
    /// Of the first round only: the side that decides. Default: the caller, or `last`.
    #[serde(default)]
    #[schema(schema_with = decide_schema)]
    pub decide: Option<String>,
    /// Of the first round only: how long the transaction may stay undecided, ms. Default and most:
    /// `transactions.open_max_ms`.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub ttl_ms: Option<u64>,
    /// Services that are told once the transaction is DONE, and have no say; each name once.
    #[serde(default)]
    #[schema(max_items = 8)]
    pub followers: Vec<String>,
    /// How long to wait until the round is tried, ms. Default: `http.transfer_wait_ms`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30_000)]
    pub wait_ms: Option<u32>,
}

/// A movement from one place to another.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TransactionLeg)]
pub struct LegDraft {
    /// The place that pays.
    #[schema(schema_with = place_schema)]
    pub from: PlaceDraft,
    /// The place that is paid: another one.
    #[schema(schema_with = place_schema)]
    pub to: PlaceDraft,
    /// The asset's symbol.
    #[schema(min_length = 1, max_length = 16, example = "USDT")]
    pub asset: String,
    /// A plain decimal number above zero, with at most as many decimals as the asset.
    #[schema(
        pattern = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)$",
        example = "10"
    )]
    pub amount: String,
}

/// A place of a leg: of a user, or a word.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaceDraft {
    /// Of a user.
    User(PlaceOfUser),
    /// A word, such as OUTSIDE.
    Text(String),
}

/// The available balance of a user in an account, or the amount that is frozen for a purpose.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Place)]
pub struct PlaceOfUser {
    /// The account.
    #[schema(schema_with = account_schema)]
    pub account: String,
    /// The user.
    #[schema(minimum = 1, maximum = 9_223_372_036_854_775_807_i64, example = 1001)]
    pub user_id: u64,
    /// The amount that is frozen for this purpose of `holds.purposes`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "DISPUTE")]
    pub purpose: Option<Value>,
}

/// A service that takes part, and the words for it.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ParticipantRequest)]
pub struct ServiceDraft {
    /// Its name in the configuration.
    #[schema(min_length = 1, max_length = 32, example = "red-envelope")]
    pub name: String,
    /// Passed on as it is, at most 8 KiB as JSON.
    #[serde(deserialize_with = "any")]
    #[schema(value_type = Value)]
    pub payload: Value,
}

/// The caller's decision.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CommitRequest)]
pub struct CommitDraft {
    /// The rounds that the caller means; default: those that were accepted.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 8)]
    pub rounds: Option<u64>,
    /// How long to wait until both stores have booked, ms. Default: `http.transfer_wait_ms`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30_000)]
    pub wait_ms: Option<u32>,
}

/// The end of a transaction that is not decided.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AbortRequest)]
pub struct AbortDraft {
    /// For people, 1 to 500 printable characters.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    pub reason: Option<String>,
    /// How long to wait until everything is given back, ms. Default: `http.transfer_wait_ms`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30_000)]
    pub wait_ms: Option<u32>,
}

fn legs_schema() -> Array {
    let legs = ArrayBuilder::new().items(Ref::from_schema_name("TransactionLeg"));
    legs.min_items(Some(1)).max_items(Some(32)).build()
}

/// A user's balance, or the outside of both accounts, which is opposite FUNDING alone.
fn place_schema() -> Schema {
    let outside = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([OUTSIDE]));
    let place = Ref::from_schema_name("Place");
    Schema::OneOf(OneOfBuilder::new().item(place).item(outside).build())
}

fn services_schema() -> Array {
    ArrayBuilder::new().items(Ref::from_schema_name("ParticipantRequest")).build()
}

fn decide_schema() -> Object {
    let names = Decider::ALL.map(Decider::name);
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build()
}

fn account_schema() -> Object {
    super::super::account_schema()
}

/// An object read into a struct. serde alone would accept an array of the fields too.
struct Fields<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<T>, D::Error> {
        struct OfMap<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for OfMap<T> {
            type Value = Fields<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fields<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Fields)
            }
        }
        deserializer.deserialize_map(OfMap(PhantomData))
    }
}

fn objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Fields<T>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|Fields(one)| one).collect())
}

fn object_or_null<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Fields<T>>::deserialize(deserializer)?.map(|Fields(one)| one))
}

/// Any JSON, which must be there: serde alone would read a missing field as null.
fn any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Value::deserialize(deserializer)
}

impl<'de> Deserialize<'de> for PlaceDraft {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PlaceDraft, D::Error> {
        struct OfPlace;
        impl<'de> Visitor<'de> for OfPlace {
            type Value = PlaceDraft;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PlaceDraft, E> {
                Ok(PlaceDraft::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PlaceDraft, A::Error> {
                PlaceOfUser::deserialize(MapAccessDeserializer::new(map)).map(PlaceDraft::User)
            }
        }
        deserializer.deserialize_any(OfPlace)
    }
}
