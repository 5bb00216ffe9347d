//! `ubscore halt` and `ubscore resume`: the operators' routes from the command line.
//!
//! Whoever can read the configuration's secret is an operator; the token made from it lives for a minute.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::cli::OperatorArgs;
use crate::clock::Clock;
use crate::config::{Config, Overrides};
use crate::http::auth::{self, Role};

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Until the answer. A halt waits for what is under way, and the check before a resume takes its time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the token is good for.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// Halts the service, and writes to `out` what that has achieved.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses.
pub fn halt(args: &OperatorArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = call(args, clock, "halt")?;
    let reason = answer["reason"].as_str().unwrap_or("");
    writeln!(out, "halted: {reason}")?;
    for (key, yes, no) in [
        ("quiet", "no money moves any more", "something that had begun before has not ended yet"),
        (
            "in_data_dir",
            "kept in the data directory",
            "NOT kept in the data directory: a start with another database would not know",
        ),
        (
            "in_postgres",
            "kept in PostgreSQL",
            "NOT kept in PostgreSQL: a start with another data directory would not know",
        ),
    ] {
        writeln!(out, "  {}", if answer[key] == json!(true) { yes } else { no })?;
    }
    Ok(())
}

/// Lets the service go on.
///
/// # Errors
/// The configuration is wrong, the service cannot be reached, or it refuses: then it is still halted.
pub fn resume(args: &OperatorArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<()> {
    call(args, clock, "resume")?;
    Ok(writeln!(out, "resumed")?)
}

/// Posts to one of the operators' routes; returns the answer's body.
fn call(args: &OperatorArgs, clock: &impl Clock, route: &str) -> anyhow::Result<Value> {
    let config = Config::load(args.config.as_deref(), Overrides::default(), args.dev)
        .context("load the configuration")?;
    let ops = match &args.ops {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("http://{}", super::reachable(config.ops.listen)),
    };
    let role = Some(Role::Admin);
    let token = auth::sign(&config.auth, args.user, role, TOKEN_LIFE, clock.now_s())?;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(ANSWER_TIMEOUT))
        .http_status_as_error(false)
        .build()
        .into();
    let request = agent
        .post(format!("{ops}/admin/v1/{route}"))
        .header("Authorization", format!("Bearer {token}"))
        .content_type("application/json");
    let mut answer = request
        .send(json!({"reason": args.reason}).to_string())
        .with_context(|| format!("no answer from {ops}; is the service running there?"))?;
    let text = answer.body_mut().read_to_string().context("read the answer")?;
    let body: Value = serde_json::from_str(&text)
        .with_context(|| format!("{ops} does not answer as ubscore does: {}", answer.status()))?;
    if !answer.status().is_success() {
        let part = |key: &str| body[key].as_str().unwrap_or("").to_owned();
        bail!("{route} refused: {}: {}", part("code"), part("message"));
    }
    Ok(body)
}
