//! `ubscore doctor --txm`: a node of the transaction manager. It looks at the configuration, the
//! database with the roles that write to it, the endpoints of the chain, and the keys.

use std::path::Path;

use alloy_primitives::B256;
use anyhow::Context;
use txm::rpc::Endpoint as _;
use txm::rpc::http::HttpEndpoint;
use txm::rpc::pool::Pool;
use txm::signer::Signer as _;

use super::finding::{Finding, Verdict};
use super::judgement;
use super::seen::Unasked;
use crate::clock::Clock;
use crate::commands::txm::keys::NodeKeys;
use crate::commands::txm::tls;
use crate::config::Config;
use crate::postgres::Address;
use crate::postgres::settings::Settings;
use crate::postgres::txm::seen::{TxmDatabase, last_migration, writable_inside};
use crate::stores;

/// Connections of a node beside its two pools: the one of a start that migrates, and one command.
const CONNECTIONS_BESIDE: usize = 2;

/// An endpoint, and the chain that it is of.
type EndpointSeen = (String, anyhow::Result<(u64, B256)>);

/// All observations of a node.
struct NodeSeen {
    config: Config,
    settings: anyhow::Result<Settings>,
    database: anyhow::Result<TxmDatabase>,
    /// A table of the nodes that the core's role may write; `None`: the core's is not configured.
    inside: Option<anyhow::Result<Option<String>>>,
    endpoints: anyhow::Result<Vec<EndpointSeen>>,
    /// The number of keys.
    keys: anyhow::Result<usize>,
}

/// The findings about the node of a configuration.
pub(super) fn examine(file: Option<&Path>, dev: bool, clock: &impl Clock) -> Vec<Finding> {
    let check = "configuration";
    let config = match Config::load_txm(file, dev, true) {
        Ok(config) => config,
        Err(error) => {
            let why = crate::telemetry::chain(&error);
            return vec![bad(check, why, "correct it; no other check was made")];
        }
    };
    let found = fine(check, "the configuration of the node is valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let seen = match runtime.context("start a runtime") {
        Ok(runtime) => runtime.block_on(NodeSeen::look(config, clock)),
        Err(error) => return vec![bad(check, format!("{error:#}"), "repeat the check")],
    };
    [found].into_iter().chain(seen.findings()).collect()
}

impl NodeSeen {
    async fn look(config: Config, clock: &impl Clock) -> NodeSeen {
        let limits = stores::postgres_limits(&config);
        let address = || -> anyhow::Result<Address> {
            Address::parse(config.txm_postgres_url()?.expose()).context("the URL of PostgreSQL")
        };
        let settings = async { Ok(Settings::read(&address()?, &limits, || clock.now_ns()).await?) };
        let database = async { Ok(TxmDatabase::look(&address()?, &limits).await?) };
        let (settings, database) = (settings.await, database.await);
        let inside = match &config.postgres.url {
            Some(url) => Some(
                async {
                    let address = Address::parse(url.expose()).context("postgres.url")?;
                    Ok(writable_inside(&address, &limits).await?)
                }
                .await,
            ),
            None => None,
        };
        let endpoints = endpoints(&config).await;
        let keys = NodeKeys::open(&config.txm.signers).map(|keys| keys.addresses().len());
        NodeSeen { config, settings, database, inside, endpoints, keys }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        match &self.settings {
            Ok(settings) => {
                // The listener reads by a pool of its own.
                let needed = 2 * self.config.postgres.connections_max + CONNECTIONS_BESIDE;
                let needed = i64::try_from(needed).unwrap_or(i64::MAX);
                let old = std::time::Duration::from_millis(self.config.alert.old_snapshot_ms);
                all.extend(judgement::postgres(Ok(settings), needed, old));
            }
            Err(error) => {
                let why = Unasked::Failed(format!("{error:#}"));
                let old = std::time::Duration::ZERO;
                all.extend(judgement::postgres(Err(&why), 0, old));
            }
        }
        if let Ok(database) = &self.database {
            all.push(schema(database));
            all.push(bound(database, self.config.txm.chain.chain_id));
            all.push(role(database));
        }
        all.extend(self.inside.iter().map(core_role));
        match &self.endpoints {
            Ok(endpoints) => {
                let genesis = self.database.as_ref().ok().and_then(|database| database.chain);
                let id = self.config.txm.chain.chain_id;
                all.extend(endpoints.iter().map(|seen| endpoint(seen, id, genesis)));
            }
            Err(error) => all.push(bad(ENDPOINT, format!("{error:#}"), "correct txm.chain")),
        }
        all.push(keys(&self.keys));
        all
    }
}

const ENDPOINT: &str = "txm endpoint";

/// Asks each endpoint alone.
async fn endpoints(config: &Config) -> anyhow::Result<Vec<EndpointSeen>> {
    let mut options = config.txm.options();
    options.quorum = 1;
    let tls = tls::client(config.txm.chain.ca_file.as_deref(), None)?;
    let mut seen = Vec::new();
    for url in &config.txm.chain.rpc_urls {
        let endpoint = HttpEndpoint::new(url.expose(), Some(tls.clone()), &options);
        let endpoint = endpoint.context("txm.chain.rpc_urls")?;
        let name = endpoint.name().to_owned();
        let identity = Pool::new(vec![endpoint], &options).identity().await;
        seen.push((name, identity.context("it does not answer")));
    }
    Ok(seen)
}

fn fine(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Ok, found: found.into(), change: None }
}

fn bad(check: &'static str, found: impl Into<String>, change: &str) -> Finding {
    let change = Some(change.to_owned());
    Finding { check, verdict: Verdict::Bad, found: found.into(), change }
}

fn warn(check: &'static str, found: impl Into<String>, change: &str) -> Finding {
    Finding { verdict: Verdict::Warn, ..bad(check, found, change) }
}

fn schema(seen: &TxmDatabase) -> Finding {
    let (check, known) = ("txm schema", last_migration());
    match seen.migration {
        None => {
            let change = "start a node: it makes the schema txm; its role needs CREATE on the \
                          database";
            warn(check, "there is no schema txm yet", change)
        }
        Some(number) if number < known => {
            let found = format!("version {number}; this program knows {known}");
            warn(check, found, "start a node of this version: it migrates the schema")
        }
        Some(number) if number > known => {
            let found = format!("version {number}; this program knows {known}");
            bad(check, found, "use the version that migrated it, or a later one")
        }
        Some(number) => fine(check, format!("version {number}")),
    }
}

fn bound(seen: &TxmDatabase, chain_id: u64) -> Finding {
    let check = "txm chain id";
    match seen.chain {
        None => fine(check, format!("the database takes chain {chain_id} at the first start")),
        Some((id, _)) if id == chain_id => fine(check, format!("the database is of chain {id}")),
        Some((id, _)) => {
            let found = format!("the database is of chain {id}, txm.chain.chain_id is {chain_id}");
            bad(check, found, "a second chain needs a database of its own: set txm.postgres_url")
        }
    }
}

fn role(seen: &TxmDatabase) -> Finding {
    let check = "txm role";
    match &seen.outside {
        None => fine(check, format!("{} can write to the schema txm only", seen.role)),
        Some(table) => {
            let found = format!("the node's role {} can also write to {table}", seen.role);
            let change = "give nodes a role, or a database, of their own: a node that is broken \
                          into could then write no balance";
            warn(check, found, change)
        }
    }
}

fn core_role(inside: &anyhow::Result<Option<String>>) -> Finding {
    let check = "core role";
    match inside {
        Ok(None) => fine(check, "the role of postgres.url cannot write to the schema txm"),
        Ok(Some(table)) => {
            let found = format!("the role of postgres.url can also write to {table}");
            let change = "REVOKE its rights on the schema txm, or set txm.postgres_url to another \
                          database";
            warn(check, found, change)
        }
        Err(error) => warn(check, format!("{error:#}"), "check postgres.url by hand"),
    }
}

fn endpoint((name, seen): &EndpointSeen, chain_id: u64, bound: Option<(u64, B256)>) -> Finding {
    let change = "take it out of txm.chain.rpc_urls, or correct its URL";
    match seen {
        Err(error) => bad(ENDPOINT, format!("{name}: {error:#}"), change),
        Ok((id, _)) if *id != chain_id => {
            let found = format!("{name} is of chain {id}, txm.chain.chain_id is {chain_id}");
            bad(ENDPOINT, found, change)
        }
        Ok((_, genesis)) if bound.is_some_and(|(_, kept)| kept != *genesis) => {
            let found = format!("{name} has another block 0 than the database: {genesis}");
            bad(ENDPOINT, found, change)
        }
        Ok((id, _)) => fine(ENDPOINT, format!("{name} answers for chain {id}")),
    }
}

fn keys(seen: &anyhow::Result<usize>) -> Finding {
    let check = "txm keys";
    match seen {
        Ok(number) => fine(check, format!("{number} keys, which only this user can read")),
        Err(error) => bad(check, format!("{error:#}"), "the node would refuse its start"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> TxmDatabase {
        TxmDatabase {
            migration: Some(last_migration()),
            chain: Some((7, B256::ZERO)),
            role: "txm".to_owned(),
            outside: None,
        }
    }

    #[test]
    fn each_difference_has_its_verdict() {
        let verdicts = |seen: &TxmDatabase| {
            [schema(seen), bound(seen, 7), role(seen)].map(|finding| finding.verdict)
        };
        let (ok, warn, bad) = (Verdict::Ok, Verdict::Warn, Verdict::Bad);
        assert_eq!(verdicts(&database()), [ok, ok, ok]);
        let empty = TxmDatabase { migration: None, chain: None, ..database() };
        assert_eq!(verdicts(&empty), [warn, ok, ok]);
        let later = Some(last_migration() + 1);
        let other = TxmDatabase { migration: later, chain: Some((8, B256::ZERO)), ..database() };
        assert_eq!(verdicts(&other), [bad, bad, ok]);
        let outside = Some("public.balances_tb".to_owned());
        assert_eq!(verdicts(&TxmDatabase { outside, ..database() }), [ok, ok, warn]);
        let of = |id, genesis| ("rpc".to_owned(), Ok((id, genesis)));
        let bound = Some((7, B256::ZERO));
        assert_eq!(endpoint(&of(7, B256::ZERO), 7, bound).verdict, ok);
        assert_eq!(endpoint(&of(8, B256::ZERO), 7, bound).verdict, bad);
        assert_eq!(endpoint(&of(7, B256::repeat_byte(1)), 7, bound).verdict, bad);
        assert_eq!(core_role(&Ok(Some("txm.managed_tx".to_owned()))).verdict, warn);
        assert_eq!(core_role(&Ok(None)).verdict, ok);
    }
}
