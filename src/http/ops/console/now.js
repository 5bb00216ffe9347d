// Current activity: tiles, plots and gauges, from the metrics.

import { metrics } from "./api.js";
import { byId, bytesText, durationText, make, numberText, say, showTerms } from "./dom.js";
import { Reading, quantile, rate } from "./metrics.js";
import { Series, draw, keys } from "./plot.js";
import { current, watch } from "./session.js";

/// The time span of the plots, ms.
const SPAN_MS = 10 * 60_000;
/// The window of rates and quantiles, ms: long enough for a readable number.
const WINDOW_MS = 10_000;
/// An audit that has not finished a round for so long is late, s.
const AUDIT_LATE_S = 120;

/// Those in which a transfer may rest, in the order of its way.
const STATES = ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMPENSATING"];

const throughput = new Series(["ended", "not committed"], SPAN_MS);
const latency = new Series(["p50", "p99"], SPAN_MS);
/// The readings of the last `WINDOW_MS`, the newest last.
const readings = [];

export function watchMetrics() {
  watch(2_000, read, show);
}

async function read() {
  const [text, serverMs] = await metrics();
  return [new Reading(text, performance.now()), serverMs / 1000];
}

function show([reading, nowS]) {
  readings.push(reading);
  while (readings.length > 2 && readings[1].at <= reading.at - WINDOW_MS) readings.shift();
  const [first] = readings;
  const over = (name, labels) => (first === reading ? NaN : rate(first, reading, name, labels));
  const share = (name, part) => (first === reading ? NaN : quantile(first, reading, name, part));

  const ended = over("ubscore_transfers_total");
  throughput.add(reading.at, [ended, ended - over("ubscore_transfers_total", { state: "COMMITTED" })]);
  const [median, slow] = [0.5, 0.99].map((part) => share("ubscore_transfer_seconds", part));
  latency.add(reading.at, [median, slow]);
  draw(byId("throughput"), throughput, numberText);
  draw(byId("latency"), latency, durationText);
  showKeys("throughput-text", throughput, (value) => `${numberText(value)}/s`);
  showKeys("latency-text", latency, durationText);

  const states = reading.by("ubscore_transfers_nonterminal", "state");
  const open = [...states.values()].reduce((sum, count) => sum + count, 0);
  const oldestS = reading.sum("ubscore_oldest_transfer_age_seconds");
  const agreedS = nowS - reading.sum("ubscore_conservation_last_success_timestamp_seconds");
  showTerms(byId("tiles"), [
    ["Finished per second", numberText(ended)],
    ["p50", durationText(median)],
    ["p99", durationText(slow)],
    ["Under way", numberText(open)],
    ["Oldest", open === 0 ? "—" : durationText(oldestS), oldestS * 1000 > current().stuck_ms ? "bad" : ""],
    ["Stores agreed", ago(agreedS), agreedS <= AUDIT_LATE_S ? "good" : "bad"],
  ]);
  showTerms(byId("states"), STATES.map((state) => [state, numberText(states.get(state) ?? 0)]));
  showGauges(reading, nowS, over, share);
}

function ago(seconds) {
  return Number.isFinite(seconds) ? `${durationText(Math.max(0, Math.round(seconds)))} ago` : "not yet";
}

function showKeys(id, series, unitText) {
  const place = byId(id);
  if (place.children.length === 0) place.append(...keys(series.names));
  series.names.forEach((name, index) => say(place.children[index].lastElementChild, `${name} ${unitText(series.last[index])}`));
}

function showGauges(reading, nowS, over, share) {
  const value = (name) => reading.sum(`ubscore_${name}`);
  const part = (term, name, most) => {
    const [held, max] = [value(name), value(most)];
    const meter = make("meter", { min: 0, max, high: max * 0.8, value: held, "aria-label": term });
    return [term, `${numberText(held)} of ${numberText(max)}`, "", meter];
  };
  const snapshotAt = value("snapshot_timestamp_seconds");
  const sync = [0.5, 0.99].map((of) => durationText(share("ubscore_wal_sync_seconds", of)));
  showTerms(byId("gauges"), [
    part("Ring: orders in it", "ring_depth", "ring_depth_max"),
    part("Outcomes remembered", "outcomes", "outcomes_max"),
    part("PostgreSQL: connections for reads", "postgres_pool_in_use", "postgres_pool_max"),
    ["Log: syncs a second", numberText(over("ubscore_wal_sync_seconds_count"))],
    ["Log: one sync, p50 and p99", sync.join(" and ")],
    ["Log: written a second", bytesText(over("ubscore_wal_written_bytes_total"))],
    ["Log: size", bytesText(value("wal_bytes"))],
    ["Log: free on its disk", bytesText(value("wal_free_bytes"))],
    ["Last snapshot", snapshotAt > 0 ? ago(nowS - snapshotAt) : "none yet"],
    ["Last snapshot stands at record", numberText(value("snapshot_sequence"))],
    ["Retries a second", numberText(over("ubscore_retries_total"))],
    ["HTTP requests a second", numberText(over("ubscore_http_requests_total"))],
    ["Streams of events", numberText(value("event_streams"))],
    ["Replay at the start took", durationText(value("replay_seconds"))],
  ]);
}
