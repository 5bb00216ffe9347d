// The operator's session: from a token that is accepted until it is accepted no longer. Loading the page anew ends it, which takes
// everything that was shown along with the token.

import { Refused, get, useToken } from "./api.js";
import { byId, say } from "./dom.js";

const ENDED = "The session has ended: its token is no longer accepted.";

/// The server's answer about the operator and itself; null before the sign-in.
let session = null;
/// The reads that are repeated while the page is visible.
const watches = [];
/// Those of them that were not answered last time.
const failing = new Set();

/// The session in force.
export function current() {
  return session;
}

/// Reads and shows something every `everyMs`, while there is a session and the page is visible. A result of null is not shown.
export function watch(everyMs, read, show) {
  watches.push({ everyMs, read, show, problem: "", asked: 0 });
}

/// Reads everything again now, since something has been changed.
export function readAgain() {
  for (const one of watches) once(one);
}

/// Handles a missing or failed answer: calls `tell`, or ends the session if the token is no longer
/// accepted.
export function fail(error, tell) {
  if (error instanceof Refused && error.status === 401) end(ENDED);
  else tell(error.message);
}

/// Begins a session after a sign-in, and calls `begun`.
export function awaitOperator(begun) {
  say(byId("sign-in-problem"), history.state?.why ?? "");
  history.replaceState(null, "");
  byId("sign-in").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [field, button] = [byId("token"), byId("sign-in-do")];
    if (button.disabled) return;
    button.disabled = true;
    // The same refusal twice is shown twice.
    say(byId("sign-in-problem"), "");
    useToken(field.value.trim());
    field.value = "";
    try {
      session = await get("session");
    } catch (error) {
      useToken(null);
      say(byId("sign-in-problem"), entranceText(error));
      button.disabled = false;
      field.focus();
      return;
    }
    byId("entrance").hidden = true;
    for (const id of ["desk", "standing"]) byId(id).hidden = false;
    byId("main").focus();
    show();
    watch(2_000, () => get("session"), (answer) => { session = answer; show(); });
    for (const one of watches) run(one);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) readAgain();
    });
    begun();
  });
  byId("sign-out").addEventListener("click", () => {
    history.replaceState(null, "", location.pathname);
    location.reload();
  });
}

function end(why) {
  history.replaceState({ why }, "");
  location.reload();
}

function entranceText(error) {
  if (!(error instanceof Refused)) return error.message;
  if (error.status === 403) return "This token is not one of an operator with the role admin.";
  return error.status === 401 ? "This token is not accepted." : error.message;
}

function show() {
  const { halted, not_ready: notReady } = session;
  const badge = byId("service-state");
  const refusing = notReady === null ? "taking transfers" : "NO NEW TRANSFERS";
  say(badge, halted === null ? refusing : "HALTED");
  badge.className = notReady === null ? "badge good" : "badge bad";
  say(byId("operator"), `operator ${session.user_id}, ubscore ${session.version}`);
  byId("halted").hidden = notReady === null;
  say(byId("halted"), notReady ?? "");
  byId("resume").disabled = halted === null;
  byId("halt").disabled = halted !== null;
}

async function run(one) {
  for (;;) {
    if (!document.hidden) await once(one);
    await new Promise((resolve) => { setTimeout(resolve, one.everyMs); });
  }
}

async function once(one) {
  one.asked += 1;
  const asked = one.asked;
  try {
    const answer = await one.read();
    // An answer that arrives after a later request is outdated.
    if (asked !== one.asked) return;
    failing.delete(one);
    if (answer !== null) one.show(answer);
  } catch (error) {
    if (asked !== one.asked) return;
    failing.add(one);
    fail(error, (message) => { one.problem = message; });
  }
  const [first] = failing;
  say(byId("asked"), first === undefined ? "" : `${first.problem} The page may show old data.`);
}
