// Actions of an operator: each is described first, and done with a reason.

import { Refused } from "./api.js";
import { byId, focusLike, make, say } from "./dom.js";
import { fail, readAgain } from "./session.js";

/// The action of the open dialog.
let proposed = null;

/// A button that proposes an action. `key`: unique on the page. `action`: `title`; `what`, its meaning; `ask`, which does it with
/// the reason; `done`, which makes the final message from the answer.
export function actionButton(text, key, action, attributes = {}) {
  return make("button", { type: "button", "data-key": key, ...attributes, onclick: () => propose(action) }, text);
}

/// Asks for a reason, and then does it.
export function propose(action) {
  // A copy: the same action proposed again is a new one.
  proposed = { ...action, opener: document.activeElement?.dataset.key };
  say(byId("action-title"), action.title);
  say(byId("action-what"), action.what);
  say(byId("action-do"), action.verb);
  say(byId("action-problem"), "");
  byId("action-do").disabled = false;
  byId("reason").value = "";
  byId("action").showModal();
  byId("reason").focus();
}

/// Does the proposed action when the dialog is confirmed.
export function awaitActions() {
  byId("action-cancel").addEventListener("click", () => byId("action").close());
  // The button that opened it may have been replaced, and the browser knows the old one only.
  byId("action").addEventListener("close", () => focusLike(proposed.opener));
  byId("action-form").addEventListener("submit", (event) => {
    event.preventDefault();
    carryOut(proposed);
  });
}

async function carryOut(action) {
  const button = byId("action-do");
  button.disabled = true;
  say(byId("action-problem"), "");
  try {
    const answer = await action.ask(byId("reason").value.trim());
    const waits = answer.state === "PENDING_APPROVAL" && answer.approval_id !== undefined;
    say(byId("said"), waits ? `This waits for another operator: approval ${answer.approval_id}.` : action.done(answer));
    if (proposed === action) byId("action").close();
    readAgain();
  } catch (error) {
    // The dialog may have been closed, and may show another action by now.
    const place = proposed === action && byId("action").open ? "action-problem" : "said";
    fail(error, () => say(byId(place), problemText(error)));
  } finally {
    if (proposed === action) button.disabled = false;
  }
}

function problemText(error) {
  const open = " Whether it was done is not known: look before you repeat it.";
  if (!(error instanceof Refused)) return error.message + open;
  const request = error.requestId === null ? "" : ` (request ${error.requestId})`;
  return `${error.code ?? error.status}: ${error.message}${request}${error.unknown ? open : ""}`;
}
