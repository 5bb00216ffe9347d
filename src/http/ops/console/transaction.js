// Transactions: those that do not end, or those of a state, an owner or a name; and one with its branches, legs and history.

import { change, get } from "./api.js";
import { actionButton } from "./action.js";
import { byId, durationText, make, renew, replace, say, table, timeText } from "./dom.js";
import { fail, watch } from "./session.js";

/// How many are listed.
const LISTED_MAX = 50;

/// The query of the list, and the one that is shown.
let query = "";
let shown = null;

export function watchTransactions() {
  watch(4_000, readList, showList);
  watch(2_000, async () => (shown === null ? null : get(`transactions/${shown}`)), showAgain);
  byId("transactions-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    query = filterText();
    list();
  });
}

/// The filter as the route's parameters. Without one: the transactions that have not ended.
function filterText() {
  const parameters = new URLSearchParams();
  const state = byId("transactions-state").value;
  if (state === "stuck") parameters.set("stuck", "true");
  else if (state === "all") parameters.set("ended", "true");
  else if (state !== "") parameters.set("state", state);
  for (const name of ["owner", "tx_id"]) {
    const text = byId(`transactions-${name}`).value.trim();
    if (text !== "") parameters.set(name, text);
  }
  return parameters.toString();
}

async function readList() {
  const asked = query;
  return [asked, await get(`transactions?limit=${LISTED_MAX}&${asked}`)];
}

/// Lists anew at once, and says a wrong filter at its place.
async function list() {
  say(byId("transactions-problem"), "");
  try {
    showList(await readList());
  } catch (error) {
    query = "";
    fail(error, (message) => say(byId("transactions-problem"), message));
  }
}

function showList([asked, { transactions, next_cursor: more }]) {
  // Answers of an earlier filter may come late.
  if (asked !== query) return;
  const caption = more === null ? "Newest first" : `The newest ${LISTED_MAX}; there are more`;
  const none = query === "" ? "Nothing is under way." : "None.";
  replace(byId("transactions"), transactions.length === 0 ? make("p", { class: "quiet" }, none)
    : make("div", { class: "scroll" }, table(caption, [
      ["Transaction", (row) => lookButton(row.transaction_id, "transactions")],
      ["State", (row) => (row.stuck ? make("strong", { class: "bad" }, `${row.state}, stuck`) : row.state)],
      ["Owner", (row) => row.owner, "wrap"],
      ["tx_id", (row) => row.tx_id, "wrap"],
      ["Age", (row) => durationText(row.age_ms / 1000), "number"],
      ["Rounds", (row) => row.rounds, "number"],
      ["Decides", (row) => row.decide],
      ["Waits for", waitText],
      ["Code", (row) => row.code ?? "—"],
    ], transactions)));
}

/// The parties that have not answered, as text.
function waitText({ waits_for: waits }) {
  return waits.length === 0 ? "—" : waits.join(", ");
}

/// A button that shows a transaction. `place`: the list that it is in, so that its key is unique.
export function lookButton(id, place) {
  const look = async () => {
    shown = id;
    say(byId("transactions-problem"), "");
    try {
      const answer = await get(`transactions/${id}`);
      if (shown !== id) return;
      replace(byId("transaction"), shownElement(answer));
    } catch (error) {
      fail(error, (message) => say(byId("transactions-problem"), message));
      return;
    }
    byId("transaction").scrollIntoView({ block: "start" });
    byId("transaction").focus({ preventScroll: true });
  };
  return make("button", { type: "button", "data-key": `${place} ${id}`, onclick: look }, make("code", {}, id));
}

function showAgain(transaction) {
  const before = byId("transaction").querySelector("article");
  if (before === null || shown !== transaction.transaction_id) return;
  // An ended one changes in its age only, once its followers have heard: keep its elements, so that a selection stays.
  if (transaction.final && before.dataset.state === stateText(transaction)) return;
  renew(before, shownElement(transaction));
}

/// All of an ended one that may change.
function stateText({ state, followers }) {
  return [state, ...followers.map((follower) => `${follower.state} ${follower.attempts}`)].join(", ");
}

function shownElement(row) {
  const name = row.transaction_id;
  const facts = [
    ["State", row.stuck ? `${row.state}, stuck` : row.state],
    ["Owner", row.owner],
    ["tx_id", row.tx_id],
    ["Rounds", row.rounds],
    ["Decides", row.decide],
    ["Decided by", row.decided_by ?? "—"],
    ["Waits for", waitText(row)],
    ["Age", durationText(row.age_ms / 1000)],
    ["Expires", timeText(row.expires_at)],
  ];
  if (row.code !== null) facts.push(["Code", row.detail === null ? row.code : `${row.code}: ${row.detail}`]);
  return make("article", { "aria-labelledby": "transaction-title", "data-state": stateText(row) },
    make("h3", { id: "transaction-title" }, "Transaction ", make("code", {}, name)),
    make("dl", { class: "facts" },
      ...facts.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)))),
    scrollable("Branches", table("Branches", [
      ["Participant", (branch) => branch.participant, "wrap"],
      ["Round", (branch) => branch.round, "number"],
      ["State", (branch) => branch.state],
      ["Code", (branch) => branch.participant_code ?? branch.code ?? "—", "wrap"],
    ], row.branches)),
    scrollable("Legs", table("Legs", [
      ["Account", (leg) => leg.account],
      ["Round", (leg) => leg.round, "number"],
      ["From", (leg) => placeText(leg.from), "number"],
      ["To", (leg) => placeText(leg.to), "number"],
      ["Amount", (leg) => `${leg.amount} ${leg.asset}`, "number"],
    ], legs(row))),
    ...(row.followers.length === 0 ? [] : [scrollable("Followers", table("Followers", [
      ["Follower", (follower) => follower.name, "wrap"],
      ["Delivery", (follower) => follower.state ?? "—"],
      ["Attempts", (follower) => follower.attempts ?? "—", "number"],
      ["Event", (follower) => follower.event_id ?? "—"],
      ["Error", (follower) => follower.error ?? "—", "wrap"],
    ], row.followers))]),
    make("h4", {}, "What happened, in UTC"),
    make("ol", { class: "timeline" }, ...row.history.map(passageElement)),
    make("p", { class: "row" }, ...actions(row)));
}

/// Without a button in it, it could not be scrolled by keyboard.
function scrollable(label, element) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${label} of the transaction` }, element);
}

/// The place of a leg: a user of the branch's own account, or a place with its name.
function placeText(place) {
  if (typeof place !== "object") return place;
  const { account, user, purpose, special } = place;
  return [account, user, purpose === undefined ? "" : `frozen ${purpose}`, special ? "special" : ""].filter(String).join(" ");
}

function legs({ branches, parts }) {
  return branches.flatMap(({ participant: account, round }, index) => parts[index].legs.map((leg) => ({ account, round, ...leg })));
}

function passageElement({ state, at, by, reason }) {
  return make("li", { class: "state" }, make("time", { datetime: at }, timeText(at)), make("strong", {}, state),
    ` by ${by}${reason === null ? "" : `: ${reason}`}`);
}

function actions(row) {
  const name = row.transaction_id;
  const about = `Transaction ${name}, ${row.tx_id} of ${row.owner}, is ${row.state}.`;
  const retry = {
    title: "Ask again now",
    verb: "Ask",
    what: `${about} Each party that has not answered is asked now. To repeat this does no harm.`,
    ask: (reason) => change("POST", `transactions/${name}/retry`, { reason }),
    done: (answer) => `The parties of transaction ${name} are asked now; it is ${answer.state}.`,
  };
  const abort = {
    title: "Abort",
    verb: "Abort",
    what: `${about} All that it has set apart goes back. One that is decided cannot be aborted.`,
    ask: (reason) => change("POST", `transactions/${name}/abort`, { reason }),
    done: (answer) => `Transaction ${name} is ${answer.state}.`,
  };
  return [
    actionButton("Ask again", `retry ${name}`, retry, { class: "main", disabled: row.final }),
    actionButton("Abort", `abort ${name}`, abort, { class: "danger", disabled: row.state !== "OPEN" }),
  ];
}
