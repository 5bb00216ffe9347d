//! The watermark from outside: servers that forget soon, and their progress.

use std::process::Command;

use serde_json::Value;

use super::{Site, eventually};

/// How long outcomes are kept: 0.0001 h, which is 0.36 s.
const KEEP_HOURS: &str = "0.0001";

/// A site with servers that forget as soon as allowed.
pub(crate) fn forgetful(site: Site) -> Site {
    site.with("UBSCORE__OUTCOMES__KEEP_HOURS", KEEP_HOURS)
        .with("UBSCORE__OUTCOMES__EVICT_EVERY_MS", 50)
}

/// PostgreSQL's value.
pub(crate) fn watermark(site: &Site) -> u64 {
    let stands = site.sql_value("SELECT watermark FROM engine_state");
    stands.parse().expect("a number")
}

/// Waits until the watermark has passed every transfer and every external operation.
pub(crate) fn wait_for_all_below(site: &Site) {
    let session = site.session();
    let above = "SELECT (SELECT count(*) FROM transfers WHERE order_number >= watermark), \
                 (SELECT count(*) FROM externals WHERE order_number >= watermark) \
                 FROM engine_state";
    eventually("everything below the watermark", || {
        (session.sql(above) == [["0", "0"]]).then_some(())
    });
    // What comes next in the log.
    eventually("the log's watermark", || (logged(site) == Some(watermark(site))).then_some(()));
}

/// The last watermark in the log.
pub(crate) fn logged(site: &Site) -> Option<u64> {
    let mut dump = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    dump.args(["wal", "dump", "--format", "json"]).arg(&site.data_dir);
    let output = dump.output().expect("the binary");
    let said = String::from_utf8(output.stdout).expect("text");
    let line = said.lines().rfind(|line| line.contains("WMARK"))?;
    let record: Value = serde_json::from_str(line).expect("JSON");
    let number = &record["order_number"];
    number.as_u64().or_else(|| number.as_str()?.parse().ok())
}
