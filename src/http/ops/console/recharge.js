// Recharges: open, overdue and held ones, and channels; one order or payment with everything that belongs to it.

import { change, get } from "./api.js";
import { actionButton, propose } from "./action.js";
import { byId, durationText, make, renew, replace, say, table, timeText } from "./dom.js";
import { current, fail, watch } from "./session.js";

/// How many are listed.
const LISTED_MAX = 50;

/// The query of the list, and the id that is shown.
let query = "";
let shown = null;

export function watchRecharges() {
  watch(4_000, async () => (current().recharges ? readAll() : null), showAll);
  watch(4_000, async () => (shown === null ? null : get(`recharges/${shown}`)), showAgain);
  byId("recharges-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
}

async function readAll() {
  const asked = query;
  const [list, held, { channels }, { receivables }, { channels: sums }, { findings }] = await Promise.all([
    get(`recharges?limit=${LISTED_MAX}&${asked}`), get(`recharges?held=true&limit=${LISTED_MAX}`), get("channels"),
    get(`receivables?open=true&limit=${LISTED_MAX}`), get("totals"), get("findings?state=OPEN"),
  ]);
  return [asked, list, held, channels, receivables, sums, findings];
}

function showAll([asked, list, held, channels, receivables, sums, findings]) {
  byId("recharges-part").hidden = false;
  // Answers of an earlier filter may come late.
  if (asked === query) showList(list);
  show("held", held.payments, "Nothing is held.", () => paymentTable(
    held.next_cursor === null ? "Longest first" : `The first ${LISTED_MAX}; there are more`, held.payments, "held"));
  const causes = new Map();
  for (const { cause } of held.payments) causes.set(cause, (causes.get(cause) ?? 0) + 1);
  const parts = [...causes].map(([cause, count]) => `${cause} ${count}`).join(", ");
  say(byId("held-title"), parts === "" ? "Held payments" : `Held payments: ${parts}`);
  show("channels", channels, "None.", () => table("Channels", [
    ["Channel", (row) => row.name],
    ["Asset", (row) => row.asset],
    ["Smallest", (row) => row.min, "number"],
    ["Largest", (row) => row.max, "number"],
    ["Keys end", (row) => (row.keys_end === null ? "—" : timeText(row.keys_end))],
    ["New orders", pauseButton],
  ], channels));
  show("channel-sums", sums ?? [], sums === null ? "They cannot be added up now." : "No payments.", () => sumsTable(sums));
  show("receivables", receivables, "No taken money is owed.", () => table("Receivables, longest first", [
    ["Return", (row) => row.return_id, "wrap"],
    ["Payment", (row) => lookButton(row.payment_id, "receivables")],
    ["User", (row) => row.user_id, "number"],
    ["Owed", (row) => `${row.open} of ${row.amount} ${row.asset}`, "number"],
  ], receivables));
  show("findings", findings, "No bill differs.", () => table("Open findings of bills, newest first", [
    ["Channel", (row) => row.channel],
    ["Day", (row) => row.day],
    ["Kind", (row) => row.kind],
    ["Number", (row) => row.reference],
    ["In the bill", (row) => row.there ?? "—", "number"],
    ["Here", (row) => row.here ?? "—", "number"],
    ["The channel says", (row) => row.what ?? "—"],
    ["End", dismissButton],
  ], findings.slice(0, LISTED_MAX)));
}

/// The accounts of each channel.
function sumsTable(sums) {
  const sum = (head, key) => [head, (row) => row[key], "number"];
  return table("Clearing, the channel's debt to us, is paid - returned - taken + given back - fees - bank", [
    ["Channel", (row) => row.channel],
    ["Asset", (row) => row.asset],
    sum("Paid", "paid"), sum("Returned", "returned"), sum("Taken", "taken"), sum("Given back", "given_back"), sum("Fees", "fees"), sum("Bank", "bank"),
    sum("Clearing", "clearing"), sum("Suspense", "suspense"), sum("Receivable", "receivable"), sum("Loss", "loss"),
  ], sums);
}

function dismissButton({ finding_id, kind, reference }) {
  return actionButton("Dismiss", `dismiss finding ${finding_id}`, {
    title: `Dismiss ${kind} ${reference}`,
    verb: "Dismiss",
    what: "A person has explained it. It stays dismissed, and no money moves.",
    ask: (reason) => change("POST", `findings/${finding_id}/dismiss`, { reason }),
    done: (answer) => `Finding ${answer.finding_id} is ${answer.state}.`,
  });
}

function show(place, rows, none, element) {
  replace(byId(place), rows.length === 0 ? make("p", { class: "quiet" }, none) : make("div", { class: "scroll" }, element()));
}

function pauseButton({ name, paused }) {
  const [verb, path] = paused ? ["Unpause", "unpause"] : ["Pause", "pause"];
  return make("span", { class: "row" }, paused ? make("strong", { class: "bad" }, "paused") : "taken",
    actionButton(verb, `${path} channel ${name}`, {
      title: `${verb} channel ${name}`,
      verb,
      what: paused ? "It takes new orders again." : "It takes no new orders, also behind a restart. Everything else goes on.",
      ask: (reason) => change("POST", `channels/${name}/${path}`, { reason }),
      done: (answer) => `Channel ${answer.name} ${answer.paused ? "is paused" : "goes on"}.`,
    }));
}

/// Lists by the filter, or shows the order or payment of an id.
async function search() {
  say(byId("recharges-problem"), "");
  const text = byId("recharges-sought").value.trim();
  if (/^(wrc|wpy)_/.test(text)) return look(text);
  const parameters = new URLSearchParams();
  if (byId("recharges-which").value !== "") parameters.set(byId("recharges-which").value, "true");
  if (/^[0-9]{1,10}$/.test(text)) parameters.set("user", text);
  else if (text !== "") {
    parameters.delete("overdue");
    parameters.set("trade_no", text);
  }
  query = parameters.toString();
  try {
    showAll(await readAll());
  } catch (error) {
    query = "";
    fail(error, (message) => say(byId("recharges-problem"), message));
  }
}

function showList({ recharges, payments, next_cursor: more }) {
  const caption = more === null ? "As asked for" : `The first ${LISTED_MAX}; there are more`;
  if (payments.length > 0) {
    show("recharges", payments, "", () => paymentTable(caption, payments, "recharges"));
    return;
  }
  show("recharges", recharges, "None.", () => table(caption, [
    ["Order", (row) => lookButton(row.recharge_id, "recharges")],
    ["State", (row) => (row.overdue ? make("strong", { class: "bad" }, `${row.state}, overdue`) : row.state)],
    ["User", (row) => row.user_id, "number"],
    ["Amount", (row) => `${row.amount} ${row.asset}`, "number"],
    ["Channel", (row) => row.channel],
    ["Closing", (row) => row.closing ?? "—"],
    ["Age", (row) => durationText(row.age_ms / 1000), "number"],
  ], recharges));
}

function paymentTable(caption, payments, place) {
  return table(caption, [
    ["Payment", (row) => lookButton(row.payment_id, place)],
    ["State", dispositionText],
    ["User", (row) => row.user_id ?? "—", "number"],
    ["Amount", amountText, "number"],
    ["Channel", (row) => row.channel],
    ["Number", (row) => row.trade_no, "wrap"],
    ["Age", (row) => durationText(row.age_ms / 1000), "number"],
  ], payments);
}

/// Where a payment stands, as text.
function dispositionText({ disposition, cause }) {
  return disposition === "HELD" ? `HELD, ${cause}` : disposition;
}

/// The amount, or the channel's minor units where no amount stands for them.
function amountText(row) {
  return row.amount === null ? `${row.minor_units} minor units of ${row.currency}` : `${row.amount} ${row.asset}`;
}

/// A button that shows an order or a payment. `place`: the list that it is in, so that its key is unique.
function lookButton(id, place) {
  return make("button", { type: "button", "data-key": `${place} ${id}`, onclick: () => look(id) }, make("code", {}, id));
}

async function look(id, ask = "") {
  shown = id;
  say(byId("recharges-problem"), "");
  try {
    const answer = await get(`recharges/${id}${ask}`);
    if (shown !== id) return;
    replace(byId("recharge"), shownElement(answer));
  } catch (error) {
    fail(error, (message) => say(byId("recharges-problem"), message));
    return;
  }
  byId("recharge").scrollIntoView({ block: "start" });
  byId("recharge").focus({ preventScroll: true });
}

function showAgain(whole) {
  const before = byId("recharge").querySelector("article");
  // Nothing new: keep the elements, so that a selection and the channel's word stay.
  if (before === null || before.dataset.state === stateText(whole)) return;
  renew(before, shownElement(whole));
}

/// All of an order that may change.
function stateText({ recharge, payments, returns, events }) {
  const passed = events.flatMap(({ event_id: id, deliveries }) => [id, ...deliveries.map(({ state }) => state)]);
  const states = [...returns.map(({ state }) => state), ...passed];
  return [recharge?.state, recharge?.closing, ...payments.map(({ disposition }) => disposition), ...states].join(", ");
}

function shownElement(whole) {
  const { recharge: order, payments, returns, movements, history, events, channel_says: says } = whole;
  const title = order === null ? ["Payment ", payments[0].payment_id] : ["Recharge ", order.recharge_id];
  const facts = order === null ? [["Order", "none here"]] : [
    ["State", order.overdue ? `${order.state}, overdue` : order.state],
    ["User", order.user_id],
    ["Amount", `${order.amount} ${order.asset}`],
    ["To", order.to],
    ["Channel", order.channel],
    ["Its number", order.reference ?? "—"],
    ["Closing", order.closing ?? "—"],
    ["Code", order.code ?? "—"],
    ["Expires", timeText(order.expires_at)],
    ["Next look", order.next_at === null ? "—" : timeText(order.next_at)],
  ];
  if (says !== null) facts.push(["The channel says", saysText(says)]);
  return make("article", { "aria-labelledby": "recharge-title", "data-state": stateText(whole) },
    make("h3", { id: "recharge-title" }, title[0], make("code", {}, title[1])),
    make("dl", { class: "facts" },
      ...facts.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value)))),
    ...payments.flatMap(paymentElements),
    ...(returns.length === 0 ? [] : [scrollable("Returns", table("Returns", [
      ["Return", (row) => row.return_id, "wrap"],
      ["Kind", (row) => row.kind],
      ["State", (row) => row.state],
      ["Since", (row) => timeText(row.updated_at)],
    ], returns))]),
    ...(movements.length === 0 ? [] : [scrollable("Movements", table("Movements", [
      ["At", (row) => timeText(row.at)],
      ["From", (row) => row.debit, "wrap"],
      ["To", (row) => row.credit, "wrap"],
      ["Amount", (row) => `${row.amount} ${row.asset}`, "number"],
    ], movements))]),
    make("h4", {}, "What happened, in UTC"),
    make("ol", { class: "timeline" }, ...history.map(passageElement)),
    ...(events.length === 0 ? [] : [scrollable("Events", table("Events of its user, oldest first", [
      ["Event", (row) => row.event_id],
      ["Type", (row) => row.type],
      ["At", (row) => timeText(row.at)],
      ["Deliveries", deliveriesText, "wrap"],
    ], events))]),
    make("p", { class: "row" }, ...actions(order, payments)));
}

/// Where the deliveries of an event stand.
function deliveriesText({ deliveries }) {
  const one = ({ state, attempts, error }) => `${state} after ${attempts} tries${error === null ? "" : `, ${error}`}`;
  return deliveries.length === 0 ? "—" : deliveries.map(one).join("; ");
}

function saysText({ word, why, payments }) {
  const paid = payments.map((one) => `${one.trade_no}: ${one.minor_units} minor units of ${one.currency}`);
  return [why === null ? word : `${word}: ${why}`, ...paid].join("; ");
}

/// Without a button in it, it could not be scrolled by keyboard.
function scrollable(label, element) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${label} of the recharge` }, element);
}

function passageElement({ state, at, by, reason }) {
  return make("li", { class: "state" }, make("time", { datetime: at }, timeText(at)), make("strong", {}, state),
    ` by ${by}${reason === null ? "" : `: ${reason}`}`);
}

function paymentElements(payment) {
  const { payment_id: id, disposition } = payment;
  return [
    make("p", {}, `Payment ${id}, number ${payment.trade_no}: ${amountText(payment)}, ${dispositionText(payment)}.`),
    ...(disposition === "HELD" ? [make("p", { class: "row" }, ...endElements(payment))] : []),
  ];
}

/// The ends of a held payment. Without an order, its user is named beside the button.
function endElements(payment) {
  const { payment_id: id, recharge_id: order } = payment;
  const field = `user-${id}`;
  const about = `Payment ${id} of ${amountText(payment)}, held as ${payment.cause}.`;
  const end = (verb, path, means, kind, fields = () => ({})) => actionButton(verb, `${path} ${id}`, {
    title: `${verb} ${id}`,
    verb,
    what: `${about} ${means}`,
    ask: (reason) => change("POST", `payments/${id}/${path}`, { reason, ...fields() }),
    done: (answer) => `Payment ${id} is ${dispositionText(answer)}.`,
  }, { class: kind });
  const owner = order === null ? "It goes to the user that you have named; another operator has to approve it."
    : "It goes to the owner of its order.";
  // The key follows from the payment: it is credited once.
  const credited = () => ({ idem_key: `console-${id}`, ...(order === null ? userNamed(field) : {}) });
  const named = [make("label", { for: field }, "User"), make("input", { id: field, inputmode: "numeric", maxlength: 15 })];
  return [
    end("Match again", "rematch", "Its channel is asked, and it is decided again.", "main"),
    ...(order === null ? named : []),
    end("Credit", "credit", owner, null, credited),
    end("Send back", "return", "It goes back to the payer, through its channel.", null),
    end("Dismiss", "dismiss", "It is not ours: its money leaves the books.", "danger"),
  ];
}

/// The user in a field, if there is one. The server asks for it otherwise.
function userNamed(field) {
  const text = byId(field).value.trim();
  return /^[0-9]{1,15}$/.test(text) ? { user_id: Number(text) } : {};
}

function actions(order, payments) {
  const id = order?.recharge_id ?? payments[0].payment_id;
  const ask = make("button", { type: "button", "data-key": `ask ${id}`, onclick: () => look(id, "?ask=true") }, "Ask the channel");
  if (order === null) return [ask];
  const about = `Recharge ${id} of ${order.amount} ${order.asset}, user ${order.user_id}, is ${order.state}.`;
  const close = (force) => ({
    title: force ? "Close here alone" : "Close",
    verb: "Close",
    what: force ? `${about} It is closed here, and not at its channel: a payment that comes later is a late one.`
      : `${about} It is closed at its channel, and then here. A payment may still win.`,
    ask: (reason) => change("POST", `recharges/${id}/close`, { reason, force }),
    done: (answer) => `Recharge ${id} is ${answer.state}${answer.final ? "" : ", closing"}.`,
  });
  const queried = {
    title: "Query now",
    verb: "Query",
    what: `${about} Its channel is asked now; a payment that it reports is decided as always.`,
    ask: (reason) => change("POST", `recharges/${id}/query`, { reason }),
    done: () => `The channel of ${id} is asked now.`,
  };
  const ended = { disabled: order.final };
  return [
    ask,
    actionButton("Query now", `query ${id}`, queried, { class: "main", ...ended }),
    actionButton("Close", `close ${id}`, close(false), ended),
    make("button", { type: "button", "data-key": `force ${id}`, class: "danger", ...ended, onclick: () => propose(close(true)) },
      "Close here alone"),
  ];
}
