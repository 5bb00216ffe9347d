"""The example participant with one planted fault, or one that kills itself: EXAMPLE FAULT ARGUMENTS..."""

import importlib.util
import os
import random
import signal
import sys

spec = importlib.util.spec_from_file_location("participant", sys.argv[1])
participant = importlib.util.module_from_spec(spec)
spec.loader.exec_module(participant)
decide, record, carry_out, verify = participant.decide, participant.record, participant.carry_out, participant.verify
Handler = participant.Handler


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def known(db, call, action):
    """Whether the branch has a recorded outcome of the action."""
    row = (call["branch_id"], action)
    return db.execute("SELECT 1 FROM fence WHERE branch_id = ? AND action = ?", row).fetchone()


def repeats_refused(action):
    """A repeat of the action is refused, as if it came from another caller."""

    def faulty(db, kind, call):
        if call["action"] == action and known(db, call, action):
            if action in ("confirm", "cancel"):
                raise participant.Conflict("no such branch is open")
            return "refused", "TAKEN"
        return decide(db, kind, call)

    participant.decide = faulty


def forgets_cancel(db, branch_id, action, payload, outcome, code):
    """A cancel of an unknown branch is answered, but not recorded."""
    found = db.execute("SELECT 1 FROM fence WHERE branch_id = ?", (branch_id,)).fetchone()
    if action != "cancel" or found:
        record(db, branch_id, action, payload, outcome, code)


def unknown_cancel(db, kind, call):
    if call["action"] == "cancel" and not (known(db, call, "try") or known(db, call, "commit")):
        raise participant.Conflict("no such branch")
    return decide(db, kind, call)


def refuses_confirm(db, kind, call):
    return ("refused", "TOO_LATE") if call["action"] == "confirm" else decide(db, kind, call)


def any_payload(db, kind, call):
    return decide(db, kind, dict(call, payload={"pool": "spring", "count": 1}))


def by_transaction(db, kind, call):
    """Records by the transaction, so that all its rounds are one."""
    return decide(db, kind, dict(call, branch_id=call["transaction_id"]))


def new_code(db, kind, call):
    outcome, code = decide(db, kind, call)
    return outcome, code and f"{code}-{random.randrange(10**12)}"


def undoes(db, kind, call):
    """A cancel takes a commit back: its record goes too."""
    answer = decide(db, kind, call)
    if call["action"] == "cancel":
        db.execute("DELETE FROM fence WHERE branch_id = ? AND action = 'commit'", (call["branch_id"],))
    return answer


def dies_before_commit(db, branch_id, action, payload, outcome, code):
    record(db, branch_id, action, payload, outcome, code)
    die()


class Silent(Handler):
    """Dies after the local commit, before the answer."""

    def answer(self, status, answer):
        die()


fault = sys.argv[2]
if fault in ("try-repeats", "confirm-repeats", "cancel-repeats", "commit-repeats"):
    repeats_refused(fault.split("-")[0])
elif fault in ("late-try", "late-commit"):
    participant.record = forgets_cancel
elif fault == "cancel-unknown":
    participant.decide = unknown_cancel
elif fault == "confirm":
    participant.decide = refuses_confirm
elif fault == "payload":
    participant.decide = any_payload
elif fault == "rounds":
    participant.decide = by_transaction
elif fault == "signature":
    participant.verify = lambda key, headers, body, now_s: True
elif fault == "refusal-repeats":
    participant.decide = new_code
elif fault == "never-undone":
    participant.decide = undoes
elif fault == "dies-before-commit":
    participant.record = dies_before_commit
elif fault == "dies-before-answer":
    Handler = Silent
else:
    assert fault == "none", fault
participant.serve(sys.argv[3:], Handler)
