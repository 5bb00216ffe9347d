//! The configuration of a command, and the addresses in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;

use crate::cli::StoreArgs;
use crate::config::Config;

/// The configuration of a command that uses both stores.
pub(super) fn load_config(args: &StoreArgs) -> anyhow::Result<Config> {
    Config::load(args.config.as_deref(), args.overrides(), args.dev)
        .context("load the configuration")
}

/// The URL of a listener. `tls`: whether it uses TLS.
pub(super) fn url(listen: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(listen))
}

/// The address to reach a listener at: loopback for one that listens on every address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_everybody_is_reached_by_loopback() {
        for (listen, want) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.1.2.3:80", "10.1.2.3:80"),
        ] {
            let listen: SocketAddr = listen.parse().expect("an address");
            assert_eq!(reachable(listen).to_string(), want);
        }
    }
}
