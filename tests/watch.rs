//! The operator's instruments: metrics, the rules that alert on them, the dashboard that shows
//! them, and the lines of a log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use domain::transfer::Op;
use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::{Value, json};
use ubscore::alert::Alert;
use ubscore::recharge::payment::HeldCause;
use ubscore::telemetry::txm::TX_ALERTS;
use ubscore::telemetry::{self, Metrics, callbacks, recharges};

use crate::harness::{Server, Site, Way, eventually};
use crate::source::production;
use crate::stream::send_one_command;

const USER: u64 = 1001;

/// Labels that Prometheus adds to every series it scrapes.
const SCRAPED: [&str; 2] = ["instance", "job"];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Prometheus' own checker: the system's, or the copy that `make need-promtool` has put into the
/// clone.
fn promtool() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/prometheus/usr/bin/promtool");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("promtool"));
    let found: Option<PathBuf> = places.find(|place| place.is_file());
    let found = found.unwrap_or(own);
    assert!(found.is_file(), "promtool is missing; run: make need-promtool");
    let mut command = Command::new(found);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Asserts that promtool accepts its arguments and standard input; returns its output.
fn assert_content(arguments: &[&str], input: &str) -> String {
    let mut child = promtool()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("its end");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

/// A server that has done transfers both ways, refused one, and made a snapshot: with all of its
/// series.
fn busy_server() -> (Site, Server) {
    let site = Site::new().with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 100);
    let socket = site.fresh_path("stream");
    let site = site.with("UBSCORE__STREAM__SOCKET", socket.display());
    let server = site.start();
    let venue = json!({"name": "book", "reason": "a test"});
    assert_eq!(server.admin("PUT", "/admin/v1/venues/7", &venue).status, 200);
    send_one_command(&socket, 7);
    for _ in 0..60 {
        assert_eq!(server.transfer(USER, Way::ToSpot, "2").status, 200);
        assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 200);
    }
    assert_eq!(server.transfer(USER, Way::ToFunding, "1000000").status, 422);
    eventually("a snapshot, and the periodic gauges", || {
        let metrics = server.metrics();
        let seen = |name: &str| metrics.contains(name);
        let all = [
            "ubscore_snapshot_seconds ",
            "ubscore_wal_bytes ",
            "ubscore_watermark ",
            "ubscore_transactions{",
            "ubscore_transaction_oldest_seconds",
            "ubscore_stream_seconds_count 1",
            "ubscore_stream_write_seconds_count 1",
            "ubscore_posting_wait_seconds_count 1",
            "ubscore_posting_decide_seconds_count 1",
        ];
        all.into_iter().all(seen).then_some(())
    });
    (site, server)
}

/// Whether a line of a scrape is about recharges.
fn is_of_recharges(line: &str) -> bool {
    [
        "ubscore_recharge",
        "ubscore_callback",
        "ubscore_channel",
        "ubscore_bill",
        "ubscore_promotion",
        "kind=\"recharge\"",
    ]
    .into_iter()
    .any(|part| line.contains(part))
}

/// The series that a service with recharges has beside all others: those of this process.
fn recharge_scrape() -> String {
    let metrics = Metrics::install();
    recharges::expect_channel("wechat");
    callbacks::expect_callbacks("wechat", "success");
    recharges::recharge_backlog(0, 0, 0, 0);
    recharges::payments_held(HeldCause::Amount.name(), 0);
    recharges::receivables_open(0);
    recharges::promotion_available("spring", 0);
    recharges::bill_findings("wechat", "MISSING_HERE", 0);
    recharges::last_good_bill("wechat", 1);
    recharges::channel_key_end("wechat", 1);
    telemetry::channel_call("wechat", "query", "paid", Duration::from_millis(3));
    metrics.upkeep();
    let text = metrics.render();
    text.lines().filter(|line| is_of_recharges(line)).map(|line| format!("{line}\n")).collect()
}

/// Whether a line of a scrape is of a node of the transaction manager.
fn is_of_nodes(line: &str) -> bool {
    ["ubscore_lease_", "ubscore_tx_", "ubscore_receipt_", "ubscore_confirmations_", "ubscore_rpc_"]
        .into_iter()
        .chain(["ubscore_endpoint_", "ubscore_signer_", "ubscore_signers_"])
        .any(|part| line.contains(part))
}

/// The series that a node has: those of this process.
fn node_scrape() -> String {
    let metrics = Metrics::install();
    telemetry::txm::describe();
    telemetry::txm::expect_endpoint("rpc.example");
    metrics.upkeep();
    let text = metrics.render();
    text.lines().filter(|line| is_of_nodes(line)).map(|line| format!("{line}\n")).collect()
}

/// The series of a scrape: for each name every set of labels.
type Series = BTreeMap<String, Vec<BTreeMap<String, String>>>;

fn series(scrape: &str) -> Series {
    let mut found = Series::new();
    for line in scrape.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let selector = line.rsplit_once(' ').expect("a series and its value").0;
        let Ok(Expr::VectorSelector(selector)) = parser::parse(selector) else {
            panic!("no series: {line}")
        };
        let labels = selector.matchers.matchers.into_iter().map(|label| (label.name, label.value));
        found.entry(selector.name.expect("a name")).or_default().push(labels.collect());
    }
    found
}

/// Walks an expression, and collects the parts that a scrape does not have.
struct Missing<'a> {
    series: &'a Series,
    recorded: &'a BTreeSet<String>,
    /// The names in it, for the labels in its groupings.
    names: BTreeSet<String>,
    grouped: BTreeSet<String>,
    missing: Vec<String>,
}

impl ExprVisitor for Missing<'_> {
    type Error = std::convert::Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Self::Error> {
        let selector = match expr {
            Expr::VectorSelector(selector) => selector,
            Expr::MatrixSelector(matrix) => &matrix.vs,
            Expr::Aggregate(aggregate) => {
                let labels = aggregate.modifier.iter().flat_map(|m| m.labels().labels.clone());
                self.grouped.extend(labels);
                return Ok(true);
            }
            _ => return Ok(true),
        };
        let name = selector.name.clone().expect("every selector has a name");
        if name == "up" || self.recorded.contains(&name) {
            return Ok(true);
        }
        let Some(all) = self.series.get(&name) else {
            self.missing.push(name);
            return Ok(true);
        };
        for label in &selector.matchers.matchers {
            let known = SCRAPED.contains(&label.name.as_str())
                || all.iter().any(|labels| {
                    let value = labels.get(&label.name);
                    match label.op {
                        MatchOp::Equal => value == Some(&label.value),
                        _ => value.is_some(),
                    }
                });
            if !known {
                self.missing.push(format!("{name}{{{}={}}}", label.name, label.value));
            }
        }
        self.names.insert(name);
        Ok(true)
    }
}

/// The names of an expression that `series` does not have.
fn missing(expression: &str, series: &Series, recorded: &BTreeSet<String>) -> Vec<String> {
    // Grafana puts a time there.
    let expression = expression.replace("$__rate_interval", "1m");
    let parsed = parser::parse(&expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
    let (names, grouped) = (BTreeSet::new(), BTreeSet::new());
    let mut missing = Missing { series, recorded, names, grouped, missing: Vec::new() };
    walk_expr(&mut missing, &parsed).expect("nothing can go wrong");
    for label in missing.grouped.iter().filter(|label| !SCRAPED.contains(&label.as_str())) {
        for name in &missing.names {
            if !series[name].iter().any(|labels| labels.contains_key(label)) {
                missing.missing.push(format!("{name} by {label}"));
            }
        }
    }
    missing.missing
}

/// Every rule of `config/alerts.yml`.
fn rules() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&file("config/alerts.yml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("groups").clone();
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

/// The value of a key in all objects below.
fn below<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| below(value, key, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == key {
                    found.push(value);
                }
                below(value, key, found);
            }
        }
        _ => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Goal: rules and dashboard use only served series. Method: every name and label in rules and
/// dashboard against a scrape without a complaint from promtool; and each metric that the
/// specification requires by name.
#[test]
fn what_is_alerted_on_and_shown_is_served() {
    let (_site, server) = busy_server();
    let scrape = server.metrics();
    let off = scrape.lines().filter(|line| is_of_recharges(line)).collect::<Vec<_>>();
    assert!(off.is_empty(), "recharges are off: {off:?}");
    assert!(!scrape.lines().any(is_of_nodes), "there is no node");
    let scrape = format!("{scrape}{}{}", recharge_scrape(), node_scrape());
    let said = assert_content(&["check", "metrics"], &scrape);
    assert_eq!(said, "", "promtool check metrics");
    let series = series(&scrape);
    for name in series.keys() {
        let of = |suffix| {
            name.strip_suffix(suffix).filter(|base| scrape.contains(&format!("# TYPE {base} ")))
        };
        let family = of("_bucket").or_else(|| of("_sum")).or_else(|| of("_count")).unwrap_or(name);
        for line in [format!("# HELP {family} "), format!("# TYPE {family} ")] {
            assert!(scrape.contains(&line), "{line} is missing");
        }
    }
    let rules = rules();
    let recorded =
        rules.iter().filter_map(|rule| rule["record"].as_str()).map(str::to_owned).collect();
    let dashboard: Value = serde_json::from_str(&file("config/grafana.json")).expect("JSON");
    let (mut shown, none) = (Vec::new(), BTreeSet::new());
    below(&dashboard["panels"], "expr", &mut shown);
    assert!(shown.len() > 40, "{}", shown.len());
    let mut absent = Vec::new();
    for rule in &rules {
        absent.extend(missing(text(&rule["expr"]), &series, &recorded));
    }
    for expression in shown {
        absent.extend(missing(text(expression), &series, &none));
    }
    assert!(absent.is_empty(), "not served: {absent:#?}");
    for (name, labels) in [
        ("ubscore_transfers_total", &["direction", "state"][..]),
        ("ubscore_step_seconds_bucket", &["step", "le"]),
        ("ubscore_transfer_seconds_bucket", &["direction", "le"]),
        ("ubscore_transfers_nonterminal", &["state"]),
        ("ubscore_oldest_transfer_age_seconds", &[]),
        ("ubscore_in_flight_amount", &["asset"]),
        ("ubscore_ring_depth", &[]),
        ("ubscore_ring_slots", &[]),
        ("ubscore_wal_bytes", &[]),
        ("ubscore_wal_sync_seconds_bucket", &["le"]),
        ("ubscore_replay_seconds", &[]),
        ("ubscore_outcomes", &[]),
        ("ubscore_accounts", &[]),
        ("ubscore_accounts_max", &[]),
        ("ubscore_balances", &[]),
        ("ubscore_balances_max", &[]),
        ("ubscore_holds", &[]),
        ("ubscore_holds_max", &[]),
        ("ubscore_held", &["asset"]),
        ("ubscore_venue_number", &["venue"]),
        ("ubscore_venue_unacknowledged", &["venue"]),
        ("ubscore_postings_total", &["op", "result"]),
        ("ubscore_stream_connections", &[]),
        ("ubscore_stream_seconds_bucket", &["le"]),
        ("ubscore_stream_write_seconds_bucket", &["le"]),
        ("ubscore_posting_wait_seconds_bucket", &["le"]),
        ("ubscore_posting_decide_seconds_bucket", &["le"]),
        ("ubscore_postgres_pool_in_use", &[]),
        ("ubscore_retries_total", &[]),
        ("ubscore_fenced_writes_total", &[]),
        ("ubscore_conservation_runs_total", &["result"]),
        ("ubscore_conservation_last_success_timestamp_seconds", &[]),
        ("ubscore_http_requests_total", &["route", "status"]),
        ("ubscore_http_request_seconds_bucket", &["route", "le"]),
        ("ubscore_build_info", &["version", "commit"]),
    ] {
        let found = series.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        let expected: BTreeSet<&str> = labels.iter().copied().collect();
        for of_one in found {
            let keys: BTreeSet<&str> = of_one.keys().map(String::as_str).collect();
            assert_eq!(keys, expected, "{name}");
        }
    }
}

/// Goal: the gauges count money in flight while it is, and none when it is back. Method: a blocked
/// refund.
#[test]
fn money_in_flight_is_shown_while_it_is() {
    let site = Site::new().with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100);
    let server = site.start();
    server.set_status(USER, "SPOT", "DISABLED");
    let says = |line: &str| server.metrics().lines().any(|found| found == line);
    let hold = site.hold_decision(Op::Refund);
    server.transfer_held(&site, USER, Way::ToSpot, "12.5");
    eventually("the refund in the gauges", || {
        let pending = "ubscore_transfers_nonterminal{state=\"COMPENSATING\"} 1";
        (says(pending) && says("ubscore_in_flight_amount{asset=\"USDT\"} 12.5")).then_some(())
    });
    let oldest = "ubscore_oldest_transfer_age_seconds ";
    let older = |line: &str| line.strip_prefix(oldest)?.parse::<f64>().ok();
    eventually("the age in the gauges", || {
        let age = server.metrics().lines().find_map(older).expect("a gauge");
        (age > 0.0).then_some(())
    });
    hold.release();
    site.wait_for_rest();
    eventually("nothing to be under way", || {
        let ended = [
            "ubscore_transfers_nonterminal{state=\"COMPENSATING\"} 0",
            "ubscore_in_flight_amount{asset=\"USDT\"} 0",
            "ubscore_oldest_transfer_age_seconds 0",
            "ubscore_transfers_total{direction=\"funding_to_spot\",state=\"ROLLED_BACK\"} 1",
        ];
        ended.into_iter().all(says).then_some(())
    });
}

#[test]
fn every_rule_is_sound_fires_and_stays_silent() {
    let said = assert_content(&["check", "rules", "config/alerts.yml"], "");
    assert!(said.contains("SUCCESS"), "{said}");
    let said = assert_content(&["test", "rules", "config/alerts_test.yml"], "");
    assert!(said.contains("SUCCESS"), "{said}");
    let tests: Value = serde_saphyr::from_str(&file("config/alerts_test.yml")).expect("YAML");
    let mut samples = Vec::new();
    below(&tests, "exp_samples", &mut samples);
    let of = |samples: &Value| {
        let samples = samples.as_array().expect("a list").iter();
        samples.map(|sample| text(&sample["labels"]).to_owned()).collect::<Vec<_>>()
    };
    // Each case names every alert that fires in it, so an empty one asserts silence of all.
    assert!(samples.iter().any(|samples| of(samples).is_empty()), "no case of silence");
    let fired: BTreeSet<String> = samples.into_iter().flat_map(of).collect();
    for rule in rules().iter().filter_map(|rule| rule["alert"].as_str()) {
        let label = format!("{{alertname=\"{rule}\"}}");
        assert!(fired.contains(&label), "{rule} fires in no case");
    }
}

/// Each alert of the service has a rule of its severity, and names an existing chapter of the
/// runbook. Each alert of a node has a rule, and a counter from the start.
#[test]
fn every_alert_has_a_rule_and_every_rule_a_chapter() {
    let rules = rules();
    let alerts: Vec<&Value> = rules.iter().filter(|rule| rule["alert"].is_string()).collect();
    for alert in Alert::ALL {
        let asked = format!("alert=\"{}\"", alert.name());
        let rule = alerts.iter().find(|rule| text(&rule["expr"]).contains(&asked));
        let rule = rule.unwrap_or_else(|| panic!("{asked} has no rule"));
        assert_eq!(text(&rule["labels"]["severity"]), alert.severity().to_lowercase(), "{asked}");
    }
    for alert in TX_ALERTS {
        let expressions = alerts.iter().map(|rule| text(&rule["expr"]));
        let mut of_nodes = expressions.filter(|it| it.contains("ubscore_tx_alert_total"));
        assert!(of_nodes.any(|it| it.contains(alert)), "{alert} has no rule");
    }
    // A counter that does not start at zero shows no increase when its alert is first raised.
    for (name, source) in production(&["chain/src", "txm/src"]) {
        for raised in source.split("aise(\"").skip(1) {
            let alert = raised.split('"').next().expect("its name");
            assert!(TX_ALERTS.contains(&alert), "{name}: {alert} does not start at zero");
        }
    }
    let runbook = file("docs/runbook.md");
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-'].contains(c));
        kept.collect::<String>().replace(' ', "-")
    };
    let chapters: BTreeSet<String> =
        runbook.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
    for rule in alerts {
        let name = text(&rule["alert"]);
        assert!(["critical", "warning"].contains(&text(&rule["labels"]["severity"])), "{name}");
        for part in ["summary", "description"] {
            assert!(!text(&rule["annotations"][part]).is_empty(), "{name} has no {part}");
        }
        let chapter = text(&rule["annotations"]["runbook_url"]).strip_prefix("docs/runbook.md#");
        assert!(
            chapters.contains(chapter.expect("a chapter of the runbook")),
            "{name}: {chapter:?}"
        );
    }
}

/// Goal: Grafana accepts the dashboard unchanged. Method: the rules of its model. Identifiers
/// differ, nothing overlaps, and every query uses the data source that the reader chooses.
#[test]
fn the_dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&file("config/grafana.json")).expect("JSON");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 39));
    assert!(!text(&dashboard["uid"]).is_empty() && !text(&dashboard["title"]).is_empty());
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let kinds: Vec<(&str, &str)> = variables
        .iter()
        .map(|variable| (text(&variable["name"]), text(&variable["type"])))
        .collect();
    assert_eq!(kinds, [("datasource", "datasource"), ("job", "query"), ("instance", "query")]);
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows: Vec<&str> = panels
        .iter()
        .filter(|panel| panel["type"] == "row")
        .map(|row| text(&row["title"]))
        .collect();
    let expected = [
        "Money",
        "Latency",
        "Engine and log",
        "PostgreSQL and HTTP",
        "Events and limits",
        "Venues",
        "Process",
        "Recharges",
        "Nodes of the transaction manager",
    ];
    assert_eq!(rows, expected);
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{}", panel["title"]);
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{} lies over another", panel["title"]);
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            let expression = text(&target["expr"]);
            assert!(expression.contains("job=\"$job\",instance=~\"$instance\""), "{expression}");
        }
    }
}

/// Goal: one field finds every log line about a transfer. Method: all JSON lines about two
/// transfers and a blocked refund; each line with the name in it has it as `req_id`.
#[test]
fn every_line_about_a_transfer_names_it() {
    let site = Site::new()
        .with("UBSCORE__LOG__FORMAT", "json")
        .with("UBSCORE__LOG__FILTER", "info,ubscore=debug")
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100);
    let server = site.start();
    let there = server.transfer(USER, Way::ToSpot, "2").req_id();
    site.wait_for_rest();
    let back = server.transfer(USER, Way::ToFunding, "1");
    site.wait_for_rest();
    server.set_status(USER, "SPOT", "DISABLED");
    let hold = site.hold_decision(Op::Refund);
    let held = server.transfer_held(&site, USER, Way::ToSpot, "1");
    server.says("blocked; others go on");
    hold.release();
    site.wait_for_rest();
    let lines: Vec<Value> = server
        .said()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect();
    let names = |line: &Value, req_id: &str| line["fields"]["req_id"] == req_id;
    let (there, back, held) = (there.as_str(), back.req_id(), held.as_str());
    for req_id in [there, &back, held] {
        let about: Vec<&Value> =
            lines.iter().filter(|line| line["fields"].to_string().contains(req_id)).collect();
        assert!(about.len() >= 3, "{about:?}");
        for line in about {
            let alert = &line["fields"]["subject"];
            assert!(names(line, req_id) || alert == req_id, "{line}");
        }
    }
    let said = |message: &str, req_id: &str| {
        let found =
            lines.iter().find(|line| names(line, req_id) && line["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("no line {message:?} of {req_id}: {lines:#?}"))
    };
    said("blocked; others go on", held);
    // The HTTP request, and the transfer of the line's span.
    let stored = said("stored", &back);
    let spans = stored["spans"].as_array().expect("spans");
    let span = |name: &str| {
        spans
            .iter()
            .find(|span| span["name"] == name)
            .unwrap_or_else(|| panic!("no span {name}: {stored}"))
    };
    assert_eq!(span("transfer")["req_id"], back.as_str(), "{stored}");
    assert_eq!(span("transfer")["direction"], "spot_to_funding", "{stored}");
    let answered = said("answered", &back);
    assert_eq!(span("http")["request_id"], answered["span"]["request_id"], "{answered}");
    assert_eq!(span("http")["route"], "/api/v1/internal_transfer");
}

/// A server's JSON output at its default level: it includes the answer with its request, and no
/// other span is made.
#[test]
fn of_spans_only_a_requests_is_made_where_nobody_looks() {
    let site = Site::new().with("UBSCORE__LOG__FORMAT", "json");
    let server = site.start();
    let req_id = server.transfer(USER, Way::ToSpot, "2").req_id();
    let said = eventually("the line of the answer", || {
        let said = server.said();
        said.lines().any(|line| line.contains(&req_id)).then_some(said)
    });
    let answered = said.lines().find(|line| line.contains(&req_id)).expect("a line");
    let answered: Value = serde_json::from_str(answered).expect("JSON");
    assert_eq!(answered["fields"]["req_id"], req_id.as_str(), "{answered}");
    let spans = answered["spans"].as_array().expect("spans");
    assert_eq!(spans.len(), 1, "{answered}");
    assert_eq!(spans[0]["name"], "http", "{answered}");
    assert!(!said.contains("\"transfer\""), "{said}");
}

/// A collector of spans, for a binary that sends them.
#[cfg(feature = "otel")]
mod traces {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use prost::Message;

    use super::USER;
    use crate::harness::{Reply, Request, Server, Site, Way, Webhook, send, token};

    /// Every span that was posted.
    fn spans(collector: &Webhook) -> Vec<Span> {
        let mut spans = Vec::new();
        for body in collector.raw() {
            let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("OTLP");
            let scopes = request.resource_spans.into_iter().flat_map(|of| of.scope_spans);
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
        spans
    }

    fn transfer_within(server: &Server, way: Way, traceparent: &str) -> Reply {
        let (token, body) = (token(USER, None), way.body("USDT", "1"));
        let path = "/api/v1/internal_transfer";
        let request = Request {
            headers: &[("traceparent", traceparent)],
            body: Some(&body),
            ..Request::new(&token, "POST", path)
        };
        send(server.http, &request).expect("an answer")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Goal: one transfer is one trace, from the client through HTTP and the coordinator to UBSCore
    /// and PostgreSQL. Method: a transfer each way under a client's trace, one without, and one
    /// with an invalid trace, as received by a collector.
    #[test]
    fn a_transfer_is_one_trace_through_all_rooms() {
        let collector = Webhook::start();
        let site = Site::new().with("UBSCORE__TELEMETRY__OTLP_ENDPOINT", collector.url());
        let server = site.start();
        let (client, other) = ("00f067aa0ba902b7", "4bf92f3577b34da6a3ce929d0e0e4736");
        let ways = [(Way::ToSpot, "1"), (Way::ToFunding, "2")];
        for (way, digit) in ways {
            let trace = digit.repeat(32);
            let reply = transfer_within(&server, way, &format!("00-{trace}-{client}-01"));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        let nonsense = transfer_within(&server, Way::ToSpot, &format!("00-{other}-{client}-zz"));
        assert_eq!(nonsense.status, 200);
        site.wait_for_rest();
        server.stop();
        let spans = spans(&collector);
        for (_, digit) in ways {
            let trace = digit.repeat(32);
            let of = |name: &str| {
                let mut of = spans.iter().filter(|s| hex(&s.trace_id) == trace && s.name == name);
                of.next().unwrap_or_else(|| panic!("no span {name} in {trace}: {spans:#?}"))
            };
            let (http, transfer) = (of("http"), of("transfer"));
            assert_eq!(hex(&http.parent_span_id), client);
            assert_eq!(transfer.parent_span_id, http.span_id);
            assert_eq!(of("validation").parent_span_id, http.span_id);
            assert_eq!(of("engine").parent_span_id, transfer.span_id);
            assert_eq!(of("commit").parent_span_id, transfer.span_id);
            // A shared span belongs to no single trace, and links to each of them.
            let commit = of("commit");
            let linked = |span: &&Span| {
                span.name == "flight" && span.links.iter().any(|l| l.span_id == commit.span_id)
            };
            assert_ne!(hex(&spans.iter().find(linked).expect("a flight").trace_id), trace);
        }
        let roots = spans.iter().filter(|s| s.name == "http" && s.parent_span_id.is_empty());
        assert_eq!(roots.count(), 2, "{spans:#?}");
        assert!(spans.iter().all(|span| hex(&span.trace_id) != other));
    }

    /// Goal: an absent collector delays no request, and is not reported again and again.
    #[test]
    fn a_collector_that_is_away_is_said_once_and_costs_nobody_anything() {
        let site = Site::new()
            .with("UBSCORE__TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:1/v1/traces")
            // The SDK's own: the interval of its sending.
            .with("OTEL_BSP_SCHEDULE_DELAY", 20);
        let server = site.start();
        let away = |server: &Server| server.said().matches("they are lost until it does").count();
        for _ in 0..20 {
            assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        }
        crate::harness::eventually("the warning", || (away(&server) == 1).then_some(()));
        for _ in 0..20 {
            assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 200);
        }
        assert_eq!(away(&server), 1, "{}", server.said());
        site.wait_for_rest();
        server.stop();
    }
}

/// A binary that cannot send spans refuses the setting, so that no operator waits for spans.
#[test]
#[cfg(not(feature = "otel"))]
fn a_collector_is_refused_by_a_binary_without_the_feature() {
    let endpoint = "http://127.0.0.1:4318/v1/traces";
    let site = Site::new().with("UBSCORE__TELEMETRY__OTLP_ENDPOINT", endpoint);
    let (code, said) = site.start_refused();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("built without the feature otel"), "{said}");
}
