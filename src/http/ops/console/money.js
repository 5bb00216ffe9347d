// The sums of each asset in both stores, and their difference.

import { LONG_MS, get } from "./api.js";
import { byId, make, replace, say, table, timeText } from "./dom.js";
import { fail, watch } from "./session.js";

/// The assets that can be paused.
let symbols = [];

export function watchMoney() {
  watch(5_000, () => get("totals"), show);
  watch(5_000, () => get("specials"), showSpecials);
  byId("check").addEventListener("click", check);
}

function show({ at, sequence, assets }) {
  const cell = (text, kind = "number") => make("td", { class: kind }, text);
  replace(byId("money"), ...assets.map((row) => make("tr", {},
    make("th", { scope: "row" }, row.asset),
    cell(row.funding), cell(row.spot), cell(row.in_flight), cell(row.deposited), cell(row.withdrawn),
    cell(row.transactions), cell(row.difference, row.difference === "0" ? "number good" : "number bad"))));
  say(byId("money-note"), `As of ${timeText(at)} UTC, record ${sequence} of Spot's log.`);
  const names = assets.map((row) => row.asset);
  if (names.join() === symbols.join()) return;
  symbols = names;
  const options = names.map((symbol) => make("option", {}, symbol));
  byId("pause-asset").replaceChildren(make("option", { value: "" }, "all"), ...options);
}

/// Balances on Funding that may be below zero.
function showSpecials({ specials }) {
  const below = (row) => (row.available.startsWith("-") ? `${row.available}, below zero` : row.available);
  replace(byId("specials"), specials.length === 0 ? "" : table("Special accounts on Funding, which may be below zero", [
    ["User", (row) => row.user_id],
    ["Asset", (row) => row.asset],
    ["Available", below, "number"],
  ], specials));
}

async function check() {
  const [button, place] = [byId("check"), byId("checked")];
  button.disabled = true;
  say(place, "Checking …");
  try {
    const { at, mismatches } = await get("conservation", LONG_MS);
    if (mismatches.length === 0) say(place, `Everything adds up, as of ${timeText(at)} UTC.`);
    else replace(place, mismatchTable(mismatches));
  } catch (error) {
    fail(error, (message) => say(place, message));
  }
  button.disabled = false;
}

function mismatchTable(mismatches) {
  return table("Differences; the service halts", [
    ["User", (row) => row.user_id ?? "—"],
    ["Asset", (row) => row.asset ?? "—"],
    ["Difference", (row) => row.difference, "number bad"],
    ["Transfer", (row) => row.req_id ?? "—"],
    ["What", (row) => row.what, "wrap"],
  ], mismatches);
}
