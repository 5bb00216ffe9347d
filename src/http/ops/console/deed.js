// What an operator changes: said in words first, and done with a reason.

import { Refused } from "./api.js";
import { byId, focusLike, make, say } from "./dom.js";
import { fail, readAgain } from "./session.js";

/// What the open dialog is about.
let proposed = null;

/// A button that proposes a deed. `key`: tells it from every other one. `deed`: `title`; `what` it means; `ask`, which does it with
/// the reason; and what is said when it is `done`, out of the answer.
export function deedButton(text, key, deed, attributes = {}) {
  return make("button", { type: "button", "data-key": key, ...attributes, onclick: () => propose(deed) }, text);
}

/// Asks for a reason, and then does it.
export function propose(deed) {
  // A copy: the same deed proposed once more is another one.
  proposed = { ...deed, opener: document.activeElement?.dataset.key };
  say(byId("deed-title"), deed.title);
  say(byId("deed-what"), deed.what);
  say(byId("deed-do"), deed.verb);
  say(byId("deed-problem"), "");
  byId("deed-do").disabled = false;
  byId("reason").value = "";
  byId("deed").showModal();
  byId("reason").focus();
}

/// Has the dialog do what was proposed.
export function awaitDeeds() {
  byId("deed-cancel").addEventListener("click", () => byId("deed").close());
  // The button that opened it may have been made anew meanwhile, and the browser knows the old one only.
  byId("deed").addEventListener("close", () => focusLike(proposed.opener));
  byId("deed-form").addEventListener("submit", (event) => {
    event.preventDefault();
    carryOut(proposed);
  });
}

async function carryOut(deed) {
  const button = byId("deed-do");
  button.disabled = true;
  say(byId("deed-problem"), "");
  try {
    const answer = await deed.ask(byId("reason").value.trim());
    const waits = answer.state === "PENDING_APPROVAL" && answer.approval_id !== undefined;
    say(byId("said"), waits ? `This waits for another operator: approval ${answer.approval_id}.` : deed.done(answer));
    if (proposed === deed) byId("deed").close();
    readAgain();
  } catch (error) {
    // The dialog may have been closed, and be about another deed by now.
    const place = proposed === deed && byId("deed").open ? "deed-problem" : "said";
    fail(error, () => say(byId(place), problemText(error)));
  } finally {
    if (proposed === deed) button.disabled = false;
  }
}

function problemText(error) {
  const open = " Whether it was done is not known: look before you repeat it.";
  if (!(error instanceof Refused)) return error.message + open;
  const request = error.requestId === null ? "" : ` (request ${error.requestId})`;
  return `${error.code ?? error.status}: ${error.message}${request}${error.unknown ? open : ""}`;
}
