//! The stores of production over a real PostgreSQL, without a process around them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::asset::Catalog;
use ubscore::clock::SystemClock;
use ubscore::commands::dev;
use ubscore::postgres::database::{Database, Writer};
use ubscore::postgres::flight::{EventIds, Journal};
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::{Address, Limits};

/// Limits that only a fault reaches.
pub(crate) const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(30),
    statement_timeout: Duration::from_secs(30),
    lock_timeout: Duration::from_secs(30),
    idle_in_transaction_timeout: Duration::from_secs(30),
};

/// The assets of `serve --dev`.
pub(crate) fn catalog() -> Arc<ArcSwap<Catalog>> {
    Arc::new(ArcSwap::from_pointee(Catalog::new(dev::assets())))
}

/// The journal of one shard.
pub(crate) fn database(target: &Address, limits: Limits, incarnation: u64, shard: u32) -> Database {
    Database::new(target.clone(), limits, Writer { incarnation, shard }, catalog())
}

/// A store over a journal of this incarnation, with at most `users_max` users in its memory.
pub(crate) fn store_over<J: Journal>(
    journal: J,
    incarnation: u64,
    users_max: usize,
) -> FlightStore<J> {
    let events = Arc::new(EventIds::new(incarnation));
    let clock = Arc::new(SystemClock::new());
    FlightStore::new(journal, catalog(), clock, events, Arc::new(()), users_max)
}
