// Transfers and users: stuck and old transfers, and the results of a search.

import { Refused, change, get } from "./api.js";
import { actionButton } from "./action.js";
import { byId, durationText, make, renew, replace, say, table } from "./dom.js";
import { current, fail, watch } from "./session.js";
import { amountText, transferElement, waitText, wayText } from "./transfer.js";

/// How many transfers of a user or a cid are shown.
const FOUND_MAX = 20;

/// The last search, and the transfer and user that are shown.
let sought = { text: "", shown: null, user: null };

export function watchTransfers() {
  watch(2_000, () => get("transfers?order=oldest&limit=10"), ({ transfers }) => showOldest(transfers));
  watch(4_000, () => get("transfers?stuck=true&limit=50"), showStuck);
  watch(2_000, async () => (sought.shown === null ? null : get(`transfers/${sought.shown}`)), showAgain);
  watch(4_000, async () => (sought.user === null ? null : [sought, await userElement(sought.user)]), showUserAgain);
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("sought").value.trim();
    if (text !== "") find(text);
  });
}

/// Searches for the text in the page's address, if there is one.
export function findNamed() {
  let text = "";
  try {
    text = decodeURIComponent(location.hash.slice(1));
  } catch {
    // A typing error in the address.
  }
  if (text !== "") find(text);
}

/// Searches for a text in each of its meanings: a req_id, a user, a cid.
async function find(text) {
  const search = { text, shown: null, user: null };
  sought = search;
  byId("sought").value = text;
  say(byId("find-problem"), "");
  // No result of an earlier search may stay below the new text.
  byId("found").replaceChildren();
  history.replaceState(null, "", `#${encodeURIComponent(text)}`);
  const problems = [];
  const ifThere = async (form, ask) => {
    if (!form.test(text)) return null;
    try {
      return await ask();
    } catch (error) {
      // A valid name without a transfer.
      if (!(error instanceof Refused && [400, 404].includes(error.status))) fail(error, (message) => problems.push(message));
      return null;
    }
  };
  const [transfer, user, named] = await Promise.all([
    ifThere(/^[0-7][0-9A-HJKMNP-TV-Z]{25}$/i, () => get(`transfers/${text}`)),
    ifThere(/^[0-9]{1,19}$/, () => userElement(text)),
    ifThere(/^[A-Za-z0-9_.:-]{1,64}$/, () => get(`transfers?cid=${text}&limit=${FOUND_MAX}`)),
  ]);
  if (sought !== search) return;
  const parts = [];
  if (transfer !== null) {
    search.shown = transfer.req_id;
    parts.push(shownElement(transfer));
  }
  if (user !== null) {
    search.user = text;
    parts.push(user);
  }
  if (named !== null && named.transfers.length > 0) {
    parts.push(make("h3", {}, "With this cid"), listElement("cid", named.transfers));
  }
  if (problems.length > 0) say(byId("find-problem"), problems[0]);
  else if (parts.length === 0) say(byId("find-problem"), `There is no transfer, no user and no cid “${text}”.`);
  replace(byId("found"), ...parts);
}

/// Those that are not stuck: the others stand in the list above.
function showOldest(transfers) {
  const fresh = transfers.filter(({ age_ms: ageMs }) => ageMs <= current().stuck_ms);
  showList("oldest", fresh, transfers.length === 0 ? "Nothing is under way." : "The oldest are stuck, see above.");
}

function showStuck({ transfers, next_cursor: more }) {
  showList("stuck", transfers, "Nothing is stuck.");
  const count = transfers.length === 0 ? "" : `: ${transfers.length}${more === null ? "" : " or more"}`;
  say(byId("stuck-title"), `Stuck${count}`);
}

function showList(place, transfers, none) {
  replace(byId(place), transfers.length === 0 ? make("p", { class: "quiet" }, none) : listElement(place, transfers));
}

function listElement(place, transfers) {
  const caption = place === "stuck" ? `Under way for more than ${durationText(current().stuck_ms / 1000)}` : "Transfers";
  return make("div", { class: "scroll" }, table(caption, [
    ["Transfer", (row) => lookButton(row.req_id, place)],
    ["State", (row) => row.state],
    ["User", (row) => row.user_id, "number"],
    ["Direction", wayText],
    ["Amount", amountText, "number"],
    ["cid", (row) => row.cid ?? "—", "wrap"],
    ["Age", (row) => durationText(row.age_ms / 1000), "number"],
    ["Waits for", waitText],
    ["Tries", (row) => row.retry_count, "number"],
  ], transfers));
}

/// A button that shows a transfer. `place`: the list that it is in, so that its key is unique.
export function lookButton(reqId, place) {
  const look = async () => {
    await find(reqId);
    byId("found").scrollIntoView({ block: "start" });
    byId("found").focus({ preventScroll: true });
  };
  return make("button", { type: "button", "data-key": `${place} ${reqId}`, onclick: look }, make("code", {}, reqId));
}

function showAgain(transfer) {
  const before = byId("found").querySelector("article");
  if (before === null || sought.shown !== transfer.req_id) return;
  const element = shownElement(transfer);
  // An ended transfer changes in its age only: keep its elements, so that a selection stays.
  if (transfer.final && before.dataset.state === transfer.state) return;
  renew(before, element);
}

function shownElement(transfer) {
  const name = transfer.req_id;
  const about = `Transfer ${name}, ${amountText(transfer)} of user ${transfer.user_id}, ${wayText(transfer)}, is ${transfer.state}.`;
  const ended = { disabled: transfer.final };
  const retry = {
    title: "Retry now",
    verb: "Retry",
    what: `${about} It is due now, and as if for the first time. To repeat this does no harm.`,
    ask: (reason) => change("POST", `transfers/${name}/retry`, { reason }),
    done: (answer) => `Transfer ${name} is retried now; it is ${answer.state}.`,
  };
  const resolve = {
    title: "Resolve",
    verb: "Resolve",
    what: `${about} If the decision is not recorded by now, it is refused for good, and the money returns to its source.`,
    ask: (reason) => change("POST", `transfers/${name}/resolve`, { reason }),
    done: (answer) => `Transfer ${name} is ${answer.state}.`,
  };
  const actions = [
    actionButton("Retry", `retry ${name}`, retry, { class: "main", ...ended }),
    actionButton("Resolve", `resolve ${name}`, resolve, { class: "danger", ...ended }),
  ];
  return transferElement(transfer, actions);
}

function showUserAgain([search, element]) {
  const before = byId("found").querySelector("#user");
  if (sought !== search || before === null) return;
  renew(before, element);
}

/// The current state of a user. `user`: the number as it was typed.
async function userElement(user) {
  const [account, page] = await Promise.all([
    get(`accounts/${user}`), get(`transfers?user=${user}&ended=true&limit=${FOUND_MAX}`),
  ]);
  const { transfers } = page;
  return make("div", { id: "user" },
    make("h3", {}, `User ${user}`),
    ...account.accounts.map((one) => accountElement(user, one)),
    // Without a button in it, it could not be scrolled by keyboard.
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Balances of user ${user}` }, balanceTable(account.balances)),
    make("h4", {}, "Newest transfers"),
    transfers.length === 0 ? make("p", { class: "quiet" }, "None.") : listElement("user", transfers));
}

const STATUSES = [
  { status: "FROZEN", verb: "Freeze", means: "No money leaves the account; money may arrive." },
  { status: "DISABLED", verb: "Disable", means: "No money leaves the account, and only refunds arrive." },
  { status: "ACTIVE", verb: "Activate", means: "Money may leave and arrive." },
];

function accountElement(user, { account_type: type, status: present }) {
  // An account may be frozen before it exists.
  const others = STATUSES.filter(({ status }) => status !== (present ?? "ACTIVE"));
  const buttons = others.map(({ status, verb, means }) => actionButton(`${verb} ${type}`, `${verb} ${type}`, {
    title: `${verb} ${type} of user ${user}`,
    verb,
    what: means,
    ask: (reason) => change("PUT", `accounts/${user}/${type}/status`, { status, reason }),
    done: (answer) => `${type} of user ${user} is ${answer.status}.`,
  }));
  const kind = others.length === 2 && present !== "FROZEN" && present !== "DISABLED" ? "badge" : "badge bad";
  return make("p", { class: "row" }, make("span", { class: kind }, `${type}: ${present ?? "no account"}`), ...buttons);
}

function balanceTable(balances) {
  const available = (side) => (row) => (row[side] === null ? "—" : row[side].available);
  return table("Balances", [
    ["Asset", (row) => row.asset],
    ["Funding", available("funding"), "number"],
    ["Spot", available("spot"), "number"],
    ["In flight", (row) => row.in_flight, "number"],
  ], balances);
}
