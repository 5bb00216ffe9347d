#!/usr/bin/env python3
"""A participant of transactions: red envelopes, each taken at most once. Python's standard library only.

    python3 examples/participant.py envelopes.db --secret-file secret --kind veto --listen 127.0.0.1:8090

In the service's configuration:

    [participants.red-envelope]
    url = "http://127.0.0.1:8090/"
    secret_file = "secret"
    kind = "veto"

A payload is {"pool": "spring", "count": 1}. The first start fills each pool of --pool NAME=COUNT.

Why it is safe:

- Every outcome is a row of `fence`, written in the local transaction that has its effect. A repeat is answered from
  that row. If this program is killed, either both exist or neither.
- A try checks and locks, and a confirm has nothing left to check. So a confirm cannot be refused.
- A cancel is recorded also if its try never came. A try that comes later finds the cancel, and is refused.
- Rows of `fence` are never deleted.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import sqlite3
import sys
import time

# Source: Standard Webhooks, "Verifying signatures": reject timestamps that are too far away.
TOLERANCE_S = 300
BODY_BYTES_MAX = 65_536
ACTIONS = {"veto": ("try", "confirm", "cancel"), "last": ("commit", "cancel")}

SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (
    pool TEXT PRIMARY KEY,
    free INTEGER NOT NULL CHECK (free >= 0),
    locked INTEGER NOT NULL CHECK (locked >= 0),
    used INTEGER NOT NULL CHECK (used >= 0)
);
CREATE TABLE IF NOT EXISTS fence (
    branch_id TEXT NOT NULL,
    action TEXT NOT NULL,
    payload TEXT NOT NULL,
    outcome TEXT NOT NULL,
    code TEXT,
    PRIMARY KEY (branch_id, action)
);
"""


class Conflict(Exception):
    """A call that no correct coordinator makes. It has no outcome: people must look."""


class Refusal(Exception):
    """The participant refuses, with a code."""


def verify(key, headers, body, now_s):
    """Whether the body is signed by the key, and not long ago."""
    ident, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent.isascii() or not sent.isdigit() or abs(now_s - int(sent)) > TOLERANCE_S:
        return False
    signed = hmac.new(key, f"{ident}.{sent}.".encode() + body, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(signed).decode()
    # More than one signature, while a key is changed.
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected.encode(), one.encode()) for one in given)


def move(db, payload, source, target):
    """Moves envelopes of a pool from one column to another. Refuses if there are too few."""
    pool, count = (payload.get("pool"), payload.get("count")) if isinstance(payload, dict) else (None, None)
    if not isinstance(pool, str) or type(count) is not int or not 1 <= count <= 1_000_000:
        raise Refusal("INVALID_PAYLOAD")
    changed = db.execute(
        f"UPDATE pools SET {source} = {source} - ?1, {target} = {target} + ?1 WHERE pool = ?2 AND {source} >= ?1",
        (count, pool),
    )
    if changed.rowcount != 1:
        raise Refusal("SOLD_OUT")


def carry_out(db, action, payload, past):
    """The effect of an action that is not recorded yet. `past`: the recorded outcomes of the branch."""
    tried = past.get("try") == "done"
    if action == "cancel":
        if "confirm" in past:
            raise Conflict("a confirmed branch is not canceled")
        # Nothing was tried, or the try was refused: the row alone stops a late try.
        if tried:
            move(db, payload, "locked", "free")
    elif action == "confirm":
        if not tried or "cancel" in past:
            raise Conflict("only a tried branch is confirmed")
        move(db, payload, "locked", "used")
    elif "cancel" in past:
        raise Refusal("CANCELED")
    else:
        move(db, payload, "free", "locked" if action == "try" else "used")


def record(db, branch_id, action, payload, outcome, code):
    """Writes the outcome, behind its effect and in the same transaction."""
    db.execute("INSERT INTO fence VALUES (?, ?, ?, ?, ?)", (branch_id, action, payload, outcome, code))


def decide(db, kind, call):
    """The outcome of one call, recorded before it is returned: (outcome, code)."""
    branch_id, action, payload = call["branch_id"], call["action"], call["payload"]
    if action not in ACTIONS[kind] or not isinstance(branch_id, str):
        raise Conflict(f"not an action of kind {kind}: {action}")
    text = json.dumps(payload, sort_keys=True)
    # IMMEDIATE locks before the look: two calls of one branch come one after the other.
    db.execute("BEGIN IMMEDIATE")
    try:
        rows = db.execute("SELECT action, payload, outcome, code FROM fence WHERE branch_id = ?", (branch_id,)).fetchall()
        if any(row[1] != text for row in rows):
            raise Conflict("another payload under a known branch")
        for known, _, outcome, code in rows:
            if known == action:
                db.execute("ROLLBACK")
                return outcome, code
        outcome, code = "done", None
        try:
            carry_out(db, action, payload, {row[0]: row[2] for row in rows})
        except Refusal as refusal:
            if action in ("confirm", "cancel"):
                raise Conflict(f"{action} found no locked envelopes") from None
            outcome, code = "refused", str(refusal)
        record(db, branch_id, action, text, outcome, code)
        db.execute("COMMIT")
        return outcome, code
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


class Handler(http.server.BaseHTTPRequestHandler):
    """POST of one call."""

    protocol_version = "HTTP/1.1"
    path_to_db = key = kind = None

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            return self.answer(413, {"error": "no length, or too long"})
        body = self.rfile.read(int(length))
        if not verify(self.key, self.headers, body, time.time()):
            return self.answer(401, {"error": "not signed by the key, or too long ago"})
        try:
            # Python's sqlite3 then begins no transaction by itself.
            with contextlib.closing(sqlite3.connect(self.path_to_db, timeout=4, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = FULL")
                outcome, code = decide(db, self.kind, json.loads(body))
        except (Conflict, ValueError, KeyError, TypeError) as error:
            return self.answer(409, {"error": str(error)})
        except sqlite3.Error as error:
            return self.answer(503, {"error": str(error)})
        self.answer(200, {"outcome": outcome, "code": code} if code else {"outcome": outcome})

    def answer(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(arguments=None, handler=Handler):
    parser = argparse.ArgumentParser(description="A participant of transactions.")
    parser.add_argument("database", help="a file of SQLite; made if it is missing")
    parser.add_argument("--secret-file", required=True, help="whsec_ and base64, as in the service's configuration")
    parser.add_argument("--kind", choices=ACTIONS, default="veto")
    parser.add_argument("--listen", default="127.0.0.1:8090", help="HOST:PORT; port 0: a free one, which is printed")
    parser.add_argument("--pool", action="append", default=[], metavar="NAME=COUNT", help="made if it is missing")
    options = parser.parse_args(arguments)
    with contextlib.closing(sqlite3.connect(options.database)) as db, db:
        db.executescript(SCHEMA)
        for name, count in (pool.split("=") for pool in options.pool):
            db.execute("INSERT INTO pools VALUES (?, ?, 0, 0) ON CONFLICT DO NOTHING", (name, int(count)))
    with open(options.secret_file) as file:
        handler.key = base64.b64decode(file.read().strip().removeprefix("whsec_"))
    handler.path_to_db, handler.kind = options.database, options.kind
    host, _, port = options.listen.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), handler)
    print(f"http://{host}:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(serve())
