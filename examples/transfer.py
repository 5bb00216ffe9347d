#!/usr/bin/env python3
"""Moves money between Funding and Spot, and knows the outcome in the end. Python's standard library only.

    UBSCORE_TOKEN=... python3 examples/transfer.py FUNDING SPOT USDT 12.5 --cid order-77

Why it is safe:

- The `cid` names the transfer, and is printed before anything is sent. If this program is killed, run the same
  command again: it returns the first one's outcome.
- No answer, or a 5xx, does not show the outcome: the same request is sent again, with the same `cid`.
- 202 is a promise: the transfer is polled until it has ended.
- Any other refusal ends it: nothing moves, or it has ended and nothing has moved. The exception is a refused token:
  it does not show the outcome of an earlier attempt.

Prints the last answer. Exit code 0: the money has arrived; 1: it has not moved; 2: wrong arguments; 3: not known yet.
"""

import argparse
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

COMMITTED, REFUSED, UNKNOWN = 0, 1, 3

# The server holds a long poll for at most the requested time, and then needs time to answer.
POLL_MS = 10_000
TIMEOUT_S = 15
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5


class Client:
    """One user of one service."""

    def __init__(self, url, token, patience_s):
        self.url = url.rstrip("/") + "/api/v1/internal_transfer"
        self.token = token
        self.deadline = time.monotonic() + patience_s

    def ask(self, path="", body=None):
        """One request: (status, answer, seconds to wait before another), or None without an answer."""
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer), 0
        except urllib.error.HTTPError as refused:
            wait = refused.headers.get("Retry-After", "0")
            return refused.code, json.load(refused), int(wait) if wait.isdigit() else 0
        except (OSError, ValueError):
            # Not connected, cut off, timed out, or half an answer.
            return None

    def insist(self, path="", body=None):
        """The first usable answer; None when patience has run out."""
        backoff_s = BACKOFF_S
        while True:
            answer = self.ask(path, body)
            if answer and answer[0] < 500 and answer[0] not in (408, 429):
                return answer[:2]
            # Clients must not retry all at once: half of the pause is random.
            wait_s = max(backoff_s * random.uniform(0.5, 1), answer[2] if answer else 0)
            if time.monotonic() + wait_s > self.deadline:
                return None
            time.sleep(wait_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def transfer(self, body):
        """Runs one transfer to its end: the exit code, and the last answer."""
        reply = self.insist(body=body)
        while reply and reply[0] < 300 and not reply[1]["final"]:
            reply = self.insist(f"/{reply[1]['req_id']}?wait_ms={POLL_MS}")
        if reply is None:
            return UNKNOWN, {"cid": body["cid"], "message": "not known yet: run it again with this cid"}
        status, answer = reply
        if status in (401, 403):
            return UNKNOWN, answer
        return COMMITTED if status == 200 and answer["state"] == "COMMITTED" else REFUSED, answer


def main():
    parser = argparse.ArgumentParser(description="Moves money between Funding and Spot, safely.")
    parser.add_argument("source", help="FUNDING or SPOT")
    parser.add_argument("target", help="SPOT or FUNDING")
    parser.add_argument("asset", help="for example USDT")
    parser.add_argument("amount", help="decimal text, for example 12.5")
    parser.add_argument("--cid", default=None, help="the transfer's name; generated if absent")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--patience", type=float, default=60, help="seconds before giving up")
    arguments = parser.parse_args()
    token = os.environ.get("UBSCORE_TOKEN")
    if not token:
        parser.error("UBSCORE_TOKEN is not set")
    cid = arguments.cid or uuid.uuid4().hex
    # Before the first byte is sent. A real program stores it with its order, in the same transaction.
    print(f"cid {cid}", file=sys.stderr, flush=True)
    body = {
        "from": arguments.source,
        "to": arguments.target,
        "asset": arguments.asset,
        "amount": arguments.amount,
        "cid": cid,
    }
    code, answer = Client(arguments.url, token, arguments.patience).transfer(body)
    print(json.dumps(answer))
    return code


if __name__ == "__main__":
    sys.exit(main())
