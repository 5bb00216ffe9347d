// Pending approvals, pauses, the halt, and events that their endpoint did not accept.

import { change, get } from "./api.js";
import { actionButton, propose } from "./action.js";
import { byId, make, replace, say, table, timeText } from "./dom.js";
import { lookButton } from "./find.js";
import { current, watch } from "./session.js";
import { lookButton as transactionButton } from "./transaction.js";

export function watchStops() {
  watch(4_000, readApprovals, showApprovals);
  watch(4_000, () => get("pauses"), showPauses);
  watch(10_000, () => get("webhooks/dead?limit=20"), showLetters);
  byId("pause").addEventListener("submit", (event) => {
    event.preventDefault();
    pauseChosen();
  });
  byId("halt").addEventListener("click", () => propose(HALT));
  byId("resume").addEventListener("click", () => propose(RESUME));
  byId("snapshot").addEventListener("click", () => propose(SNAPSHOT));
}

const HALT = {
  title: "Halt all money",
  verb: "Halt",
  what: "No transfer begins and no money moves until an operator resumes, also after a restart. Reads continue.",
  ask: (reason) => change("POST", "halt", { reason }),
  // The reason stands above, where it stays.
  done: (answer) => ["The halt is in force.", ...HALTED_ONLY.filter(([key]) => !answer[key]).map(([, text]) => text)].join(" "),
};

/// The parts of a halt that may fail, with their messages.
const HALTED_ONLY = [
  ["quiet", "An earlier step has not ended yet: halt again to check it."],
  ["in_data_dir", "NOT kept in the data directory: a start with another database would not be halted."],
  ["in_postgres", "NOT kept in PostgreSQL: a start with another data directory would not be halted."],
];

const RESUME = {
  title: "Resume",
  verb: "Resume",
  what: "Everything is checked first. If something does not add up, the halt stays.",
  ask: (reason) => change("POST", "resume", { reason }),
  done: () => "Resumed.",
};

const SNAPSHOT = {
  title: "Make a snapshot",
  verb: "Make it",
  what: "UBSCore's state is written to the disk and read back, so that a start replays less of the log.",
  ask: (reason) => change("POST", "snapshot", { reason }),
  done: (answer) => `A snapshot that stands behind record ${answer.after} is being made.`,
};

/// A table, or a sentence where there are no rows.
function show(place, rows, none, element) {
  replace(byId(place), rows.length === 0 ? make("p", { class: "quiet" }, none) : make("div", { class: "scroll" }, element()));
}

/// Requests that wait for an operator, and approved ones that were not carried out because the service died in between: to
/// approve one again carries it out. The oldest first, so that a new one does not move a button under the pointer.
async function readApprovals() {
  const [pending, approved] = await Promise.all(["PENDING_APPROVAL", "APPROVED"].map((state) => get(`approvals?state=${state}`)));
  const left = approved.approvals.filter((one) => one.carried_out_at === null && Date.parse(one.expires_at) > Date.now());
  return [...pending.approvals, ...left].sort((one, other) => (one.created_at < other.created_at ? -1 : 1));
}

/// The outcome in an action's answer: a refused operation counts as carried out as well.
function outcomeText(answer) {
  if (answer.outcome !== undefined) return answer.code === null ? answer.outcome : `${answer.outcome}, ${answer.code}`;
  if (answer.state !== undefined) return answer.state;
  return answer.halted === false ? "resumed" : "carried out";
}

/// The exact action, without the operator's reason.
function requestText({ action, subject, request }) {
  const fields = Object.entries(request).map(([name, value]) => `${name} ${value ?? "none"}`);
  return `${action} ${subject}${fields.length === 0 ? "" : `: ${fields.join(", ")}`}.`;
}

function showApprovals(approvals) {
  const needed = current().approval_required;
  const none = needed.length === 0 ? "None, and no action needs one." : `None. Two operators are needed for: ${needed.join(", ")}.`;
  const decide = (approval, verb, path, kind) => actionButton(verb, `${verb} ${approval.approval_id}`, {
    title: `${verb}: ${approval.action} ${approval.subject}`,
    verb,
    what: `${requestText(approval)} Requested by operator ${approval.maker}. Reason: ${approval.reason}`,
    ask: (reason) => change("POST", `approvals/${approval.approval_id}/${path}`, { reason }),
    done: (answer) => `${verb}: ${approval.action} ${approval.subject}: ${outcomeText(answer)}.`,
  }, { class: kind });
  show("approvals", approvals, none, () => table("An operator other than the requester decides", [
    ["Action", (row) => row.action],
    ["About", (row) => row.subject, "wrap"],
    ["What", requestText, "wrap"],
    ["Status", (row) => (row.state === "APPROVED" ? "approved, not carried out" : "waits")],
    ["By", (row) => row.maker, "number"],
    ["Reason", (row) => row.reason, "wrap"],
    ["Ends", (row) => timeText(row.expires_at)],
    ["Decide", (row) => make("span", { class: "row" },
      decide(row, "Approve", "approve", "main"), decide(row, "Reject", "reject", null))],
  ], approvals));
}

function showPauses({ pauses }) {
  show("pauses", pauses, "Nothing is paused.", () => table("New transfers that are refused; accepted ones continue", [
    ["Direction", (row) => row.direction ?? "both"],
    ["Asset", (row) => row.asset ?? "all"],
    ["Since", (row) => timeText(row.at)],
    ["By", (row) => row.actor],
    ["Reason", (row) => row.reason, "wrap"],
    ["End", (row) => actionButton("Unpause", `unpause ${row.direction} ${row.asset}`, pauseAction(row.direction, row.asset, false))],
  ], pauses));
}

function pauseChosen() {
  const [direction, asset] = ["pause-direction", "pause-asset"].map((id) => byId(id).value || null);
  if (direction === null && asset === null) say(byId("said"), "Name a direction, an asset or both. To stop everything, use the halt.");
  else propose(pauseAction(direction, asset, true));
}

function pauseAction(direction, asset, paused) {
  const scope = `${asset ?? "all assets"}, ${direction ?? "both directions"}`;
  return {
    title: paused ? `Pause ${scope}` : `Let ${scope} go on`,
    verb: paused ? "Pause" : "Unpause",
    what: paused ? "New transfers of it are refused from then on; accepted ones continue." : "New transfers of it are accepted again.",
    ask: (reason) => change("PUT", "pauses", { direction, asset, paused, reason }),
    done: () => (paused ? `Paused: ${scope}.` : `No longer paused: ${scope}.`),
  };
}

function showLetters({ dead, next_cursor: more }) {
  show("letters", dead, "None.", () => table(more === null ? "Oldest first" : "Oldest first; there are more", [
    ["Event", (row) => row.event_id, "number"],
    ["Endpoint", (row) => row.endpoint, "wrap"],
    ["About", (row) => {
      const place = `letter ${row.event_id} ${row.endpoint}`;
      return row.req_id === null ? transactionButton(row.transaction_id, place) : lookButton(row.req_id, place);
    }],
    ["State", (row) => row.state],
    ["Tries", (row) => row.attempts, "number"],
    ["Error", (row) => row.error ?? "—", "wrap"],
    ["Resend", (row) => actionButton("Send again", `resend ${row.event_id} ${row.endpoint}`, {
      title: `Send event ${row.event_id} again`,
      verb: "Send again",
      what: `To ${row.endpoint}, now, with a new count of tries.`,
      ask: (reason) => change("POST", `webhooks/${row.event_id}/resend`, { reason }),
      done: () => `Event ${row.event_id} is due again.`,
    })],
  ], dead));
}
