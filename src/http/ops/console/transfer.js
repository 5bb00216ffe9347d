// One transfer as both stores know it.

import { durationText, make, timeText } from "./dom.js";

/// The states that follow once an operation is decided: its record stands before the first of them.
const FOLLOWING = {
  WITHDRAW: ["SOURCE_DONE", "FAILED", "TARGET_PENDING", "COMMITTED", "COMPENSATING", "ROLLED_BACK"],
  DEPOSIT: ["COMMITTED", "COMPENSATING", "ROLLED_BACK"],
  REFUND: ["ROLLED_BACK"],
};

const PLACES = { source: "with the source", in_flight: "in flight", target: "with the target" };

/// The history of a transfer, in the order of its states, since the clocks of both stores may differ.
export function timeline(shown) {
  const events = shown.history.map((passed) => ({ passed }));
  for (const operation of shown.operations) {
    const following = FOLLOWING[operation.op] ?? [];
    const before = events.findIndex(({ passed }) => passed !== undefined && following.includes(passed.state));
    events.splice(before === -1 ? events.length : before, 0, { operation });
  }
  return events;
}

/// The operation that the transfer waits for, as text.
export function waitText(transfer) {
  const { waits_for: waits } = transfer;
  return waits === null ? "—" : `${waits.account} to ${waits.op}`;
}

/// Where the money goes, as text.
export function wayText(transfer) {
  return `${transfer.from} → ${transfer.to}`;
}

/// An amount with its asset, as text.
export function amountText(transfer) {
  return `${transfer.amount} ${transfer.asset}`;
}

/// Everything about a transfer. `actions`: buttons.
export function transferElement(shown, actions) {
  const facts = [
    ["State", shown.state],
    ["Money", PLACES[shown.funds_at] ?? shown.funds_at],
    ["Direction", wayText(shown)],
    ["Amount", amountText(shown)],
    ["User", shown.user_id],
    ["cid", shown.cid ?? "none"],
    ["Age", durationText(shown.age_ms / 1000)],
    ["Waits for", waitText(shown)],
    ["Tries", shown.retry_count],
    ["Next try", shown.next_retry_at === null ? "—" : timeText(shown.next_retry_at)],
  ];
  const { last_error: failed } = shown;
  if (failed !== null) facts.push(["Last error", `${failed.message} (${failed.sqlstate ?? failed.class}, ${timeText(failed.at)})`]);
  if (shown.error !== null) facts.push(["Error", `${shown.error.code}: ${shown.error.message}`]);
  const notes = [];
  if (!shown.spot_answered) notes.push("UBSCore did not answer: its records are missing here.");
  if (shown.spot_forgotten) notes.push("This transfer is below UBSCore's watermark: its records may be gone.");
  return make("article", { "aria-labelledby": "transfer-title", "data-state": shown.state },
    make("h3", { id: "transfer-title" }, "Transfer ", make("code", {}, shown.req_id)),
    make("dl", { class: "facts" },
      ...facts.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)))),
    ...notes.map((note) => make("p", { class: "warn" }, note)),
    make("h4", {}, "What happened, in UTC"),
    make("ol", { class: "timeline" }, ...timeline(shown).map(eventElement)),
    make("p", { class: "row" }, ...actions));
}

function eventElement({ passed, operation }) {
  if (passed !== undefined) {
    const more = [];
    if (passed.attempt > 0) more.push(`, after ${passed.attempt} tries`);
    if (passed.reason !== null) more.push(`: ${passed.reason}`);
    return make("li", { class: "state" }, timeElement(passed.at), make("strong", {}, passed.state), ...more);
  }
  const { account, op, amount, outcome, code, balance_after: after, log_sequence: record } = operation;
  const refused = outcome !== "SUCCESS";
  return make("li", { class: refused ? "store refused" : "store" },
    operation.at === null ? null : timeElement(operation.at),
    make("strong", {}, account), ` ${op} ${amount}: ${refused ? `${outcome} ${code}` : outcome}`,
    after === null ? null : `, balance afterwards ${after}`,
    record === null ? " (PostgreSQL)" : ` (record ${record} of the log)`);
}

function timeElement(at) {
  return make("time", { datetime: at }, timeText(at));
}
