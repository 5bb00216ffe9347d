//! A PostgreSQL of the bench's own, and connections to it.

use std::path::Path;

use anyhow::Context;
use tokio_postgres::NoTls;
use ubscore::postgres::embedded::{Embedded, Options};

/// Connections of the bench's PostgreSQL: those of the most clients of a base case, ours and the
/// bench's.
const CONNECTIONS_MAX: u16 = 320;

/// PostgreSQL as `serve --dev` starts it, but for more connections. The caller stops it.
pub(crate) async fn start_postgres(data_dir: &Path) -> anyhow::Result<Embedded> {
    let options = Options { connections_max: CONNECTIONS_MAX, ..Options::new(data_dir) };
    Embedded::start(&options).await.context("start PostgreSQL")
}

/// A connection to that server.
pub(crate) async fn connect_postgres(
    postgres: &tokio_postgres::Config,
) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = postgres.connect(NoTls).await.context("connect to PostgreSQL")?;
    // It ends with the client; an error reaches the client's next statement.
    drop(tokio::spawn(connection));
    Ok(client)
}

/// The version, and the settings that decide the time of a commit.
pub(crate) async fn settings(postgres: &tokio_postgres::Client) -> anyhow::Result<String> {
    let mut settings = postgres.query_one("SHOW server_version", &[]).await?.get::<_, String>(0);
    for name in
        ["fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers"]
    {
        let row = postgres.query_one(&format!("SHOW {name}"), &[]).await?;
        settings += &format!(", {name}={}", row.get::<_, &str>(0));
    }
    Ok(settings)
}
