// Actions of an operator: each is described first, and done with a reason.

import { Refused } from "./api.js";
import { byId, focusLike, make, say } from "./dom.js";
import { fail, readAgain } from "./session.js";

/// The action of the open dialog.
let proposed = null;

/// A button that proposes an action. `key`: unique on the page. `deed`: `title`; `what`, its meaning; `ask`, which does it with
/// the reason; `done`, which makes the final message from the answer.
export function deedButton(text, key, deed, attributes = {}) {
  return make("button", { type: "button", "data-key": key, ...attributes, onclick: () => propose(deed) }, text);
}

/// Asks for a reason, and then does it.
export function propose(deed) {
  // A copy: the same action proposed again is a new one.
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

/// Does the proposed action when the dialog is confirmed.
export function awaitDeeds() {
  byId("deed-cancel").addEventListener("click", () => byId("deed").close());
  // The button that opened it may have been replaced, and the browser knows the old one only.
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
    // The dialog may have been closed, and may show another action by now.
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
