//! The additions of `serve --dev`: assets, money for two users, and a guide for the first minutes.

pub mod chain;
mod child;
pub mod children;
pub mod simulator;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tracing::warn;

use crate::adapters::Adapter;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::http::auth::{self, SignError};
use crate::postgres::store::External;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::{Asset, AssetId, AssetStatus, Catalog};
use domain::transfer::Op;

/// Users that get money at the first start.
const USERS: [u64; 2] = [1001, 1002];
/// The gifts of each user: symbol and whole coins.
const GIFTS: [(&str, u64); 2] = [("USDT", 10_000), ("BTC", 10)];
/// How long the printed tokens are valid.
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// The data directory of `make run`, which `make reset` removes.
const DATA_DIR: &str = "./data";
/// The most coins one development transfer moves.
const COINS_MAX: u64 = 1_000_000;
const PRECISION: u8 = 8;
const FEN_PRECISION: u8 = 2;
const COIN: u64 = 100_000_000;

/// The development assets.
pub fn assets() -> Vec<Asset> {
    let asset = |id, symbol: &str, status, transfer_enabled| Asset {
        id: AssetId(id),
        symbol: symbol.to_owned(),
        precision: PRECISION,
        status,
        transfer_enabled,
        transfer_min: Amount::new(1).expect("not zero"),
        transfer_max: Amount::new(COINS_MAX * COIN).expect("not zero"),
    };
    vec![
        asset(1, "BTC", AssetStatus::Active, true),
        asset(2, "ETH", AssetStatus::Active, true),
        asset(3, "USDT", AssetStatus::Active, true),
        asset(4, "SUSP", AssetStatus::Suspended, true),
        asset(5, "NOXFER", AssetStatus::Active, false),
        // What payment channels take: its smallest unit is the fen.
        Asset {
            precision: FEN_PRECISION,
            transfer_max: Amount::new(COINS_MAX * 100).expect("not zero"),
            ..asset(6, "CNY", AssetStatus::Active, true)
        },
    ]
}

/// Gives the development users their money, once for each database: each gift is an external
/// deposit with a fixed idempotency key.
///
/// # Errors
/// A development asset is missing.
pub async fn give_money<T: Adapter, F: Adapter>(
    coordinator: &Coordinator<T, F>,
    catalog: &Catalog,
) -> anyhow::Result<()> {
    for user in USERS {
        for (symbol, coins) in GIFTS {
            let external = External {
                idem_key: format!("dev-{user}-{symbol}"),
                op: Op::ExtDeposit,
                user: UserId::new(user).expect("in range"),
                asset: catalog.by_symbol(symbol).context("a development asset is missing")?.id,
                amount: Amount::new(coins * COIN).expect("not zero"),
                actor: "dev".to_owned(),
                order_number: 0,
            };
            // The service is halted, or a lock delays the gift. Serving goes on.
            if let Err(rejection) = coordinator.external(external).await {
                let code = rejection.code.name();
                warn!(
                    user,
                    symbol, code, "the development money was not given; the next start tries again"
                );
            }
        }
    }
    Ok(())
}

/// The guide with the first commands for a new user. `children`: the part about child processes.
///
/// # Errors
/// The configuration cannot sign tokens.
pub fn guide(
    config: &Config,
    http: SocketAddr,
    ops: SocketAddr,
    now_s: u64,
    children: &str,
) -> anyhow::Result<String> {
    let token = |user| match auth::sign(&config.auth, user, None, TOKEN_LIFE, now_s) {
        Err(SignError::NotShared(_)) => Ok(format!("A-TOKEN-OF-YOUR-ISSUER-FOR-{user}")),
        signed => signed,
    };
    let data = config.data_dir.display();
    // A self-made certificate has no public issuer, so curl needs the file.
    let curl = |file: &Option<PathBuf>| match file {
        Some(file) => ("https", format!("curl --cacert {}", file.display())),
        None => ("http", "curl".to_owned()),
    };
    let (scheme, curl_http) = curl(&config.http.tls_certificate_file);
    let (ops_scheme, _) = curl(&config.ops.tls_certificate_file);
    let [first, second] = [token(USERS[0])?, token(USERS[1])?];
    let post = format!(
        "{curl_http} -s -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n    \
         {scheme}://{http}/api/v1/internal_transfer \\\n    -d"
    );
    let recharges = recharges(config, &curl_http, &format!("{scheme}://{http}"));
    // The first process of a container may have no path on the disk.
    let program =
        std::env::current_exe().map_or("ubscore".to_owned(), |path| path.display().to_string());
    let reset = match (config.data_dir == Path::new(DATA_DIR), &config.postgres.url) {
        (true, None) => "`make reset`".to_owned(),
        (false, None) => format!("remove {data}"),
        (_, Some(_)) => format!("remove {data}, and name an empty database"),
    };
    Ok(format!(
        r#"
data directory   {data}
public API       {scheme}://{http}
operators        {ops_scheme}://{ops}/console, with what `ubscore token --user 7 --role admin --dev` prints

The development secret is known to everyone; so this listens on loopback only.
Users {a} and {b} were given 10000 USDT and 10 BTC in Funding at the first start.

  export TOKEN={first}

Funding to Spot, and back:
  {post} '{{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"250.50"}}'
  {post} '{{"from":"SPOT","to":"FUNDING","asset":"USDT","amount":"100"}}'

Balances, and the history of one transfer:
  {curl_http} -s -H "Authorization: Bearer $TOKEN" {scheme}://{http}/api/v1/balances
  {curl_http} -s -H "Authorization: Bearer $TOKEN" {scheme}://{http}/api/v1/internal_transfer/REQ_ID

The log of Spot:
  {program} wal dump {data}
{recharges}{children}
User {b}: export TOKEN={second}
Stop: Ctrl-C. Reset: stop, then {reset}."#,
        a = USERS[0],
        b = USERS[1],
    ))
}

/// The part of the guide about recharges; empty if they are off.
fn recharges(config: &Config, curl: &str, api: &str) -> String {
    let of_simulator = config.channels.get("wechat").filter(|_| config.recharge.enabled);
    let Some(channel) = of_simulator else { return String::new() };
    let ask = format!("{curl} -s -H \"Authorization: Bearer $TOKEN\"");
    let simulator = channel.base_url();
    let body = r#"{"asset":"CNY","amount":"100","channel":"wechat","idem_key":"first"}"#;
    [
        "",
        "A recharge through a simulator of WeChat Pay, where no money moves: make it, pay as a person would, read it:",
        &format!("  {ask} -H 'Content-Type: application/json' \\"),
        &format!("    {api}/api/v1/recharge -d '{body}'"),
        &format!("  curl -s -X POST {simulator}/pay/RECHARGE_ID -d '{{}}'"),
        &format!("  {ask} {api}/api/v1/recharge/RECHARGE_ID"),
        "",
    ]
    .join("\n")
}
