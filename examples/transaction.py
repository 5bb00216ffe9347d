#!/usr/bin/env python3
"""Pays an order with a red envelope and a balance: a caller of transactions. Standard library, and `psql`.

    UBSCORE_TOKEN=$(ubscore token --service trade) python3 examples/transaction.py 77 --buyer 1001 --seller 1002 --asset USDT \\
        --price 100 --envelope 20 --envelopes-of 9000 --owner trade --database postgres://trade@localhost/ubscore

The table `orders` is this service's own, in the database of Funding. An order is PAID in the local transaction that
decides the money, so both are true or neither.

Why it is safe:

- `orders` has the row, with the name of its transaction, before anything is sent. Run the same command again after
  any failure: it goes on with that transaction.
- No answer, or a 5xx, does not show the outcome: the same request is sent again. Its name is
  `tx_id` and round.
- `transaction_commit` and the update of the order are one local transaction. If its COMMIT has no answer, it is run
  again: both are done twice without harm.
- A transaction that is aborted first fails `transaction_commit` with UB010, and takes the update back with it.

Prints the last answer. Exit code 0: paid; 1: not paid, nothing has moved; 2: wrong arguments; 3: not known yet.
"""

import argparse
import decimal
import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request

PAID, REFUSED, UNKNOWN = 0, 1, 3

TTL_MS, POLL_MS = 90_000, 10_000
TIMEOUT_S = 15
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    order_id bigint PRIMARY KEY, tx_id text NOT NULL UNIQUE, price numeric NOT NULL, state text NOT NULL
);
"""
BEGIN = """
INSERT INTO orders VALUES (:'order_id', :'tx_id', :'price', 'PAYING') ON CONFLICT DO NOTHING;
SELECT state FROM orders WHERE order_id = :'order_id';
"""
# The local transaction. An order that is not PAYING any more divides by nothing: the update must change one row.
PAY = """
BEGIN;
WITH paid AS (UPDATE orders SET state = 'PAID' WHERE order_id = :'order_id' AND state IN ('PAYING', 'PAID') RETURNING 1)
SELECT 1 / count(*) FROM paid;
SELECT transaction_commit(:'owner', :'tx_id', :'rounds'::integer);
COMMIT;
"""
FAIL = "UPDATE orders SET state = 'FAILED' WHERE order_id = :'order_id' AND state = 'PAYING';"


class Away(Exception):
    """The database did not answer: the statements may be done or not."""


class Sql(Exception):
    """The database refused a statement, and rolled back."""

    def __init__(self, text):
        super().__init__(text)
        # psql prints `ERROR:  UB010: message` if it is verbose.
        self.state = text.split("ERROR:", 1)[1].split(":", 1)[0].strip()


class Trade:
    """One order of one service."""

    def __init__(self, options, token):
        self.options, self.token = options, token
        self.tx_id = f"order:{options.order_id}"
        self.url = f"{options.url.rstrip('/')}/api/v1/transactions/{self.tx_id}"
        self.deadline = time.monotonic() + options.patience

    def psql(self, script, **values):
        """Runs a script. Returns its output."""
        values = {"order_id": self.options.order_id, "tx_id": self.tx_id, **values}
        command = ["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]
        command += [word for name, value in values.items() for word in ("-v", f"{name}={value}")]
        done = subprocess.run([*command, "-d", self.options.database], input=script, text=True, capture_output=True)
        if done.returncode == 0:
            return done.stdout.strip()
        # A connection that ends, a FATAL too, leaves the end of a COMMIT open.
        raise (Sql if done.returncode == 3 and "ERROR:" in done.stderr else Away)(done.stderr.strip())

    def insist(self, attempt):
        """Repeats an attempt until it returns something but None; None when patience has run out."""
        backoff_s = BACKOFF_S
        while True:
            found = attempt()
            # Clients must not retry all at once: half of the pause is random.
            wait_s = backoff_s * random.uniform(0.5, 1)
            if found is not None or time.monotonic() + wait_s > self.deadline:
                return found
            time.sleep(wait_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def ask(self, path="", body=None):
        """One request: (status, answer), or None without a usable answer."""
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            usable = refused.code < 500 and refused.code not in (408, 429)
            return (refused.code, json.load(refused)) if usable else None
        except (OSError, ValueError):
            # Not connected, cut off, timed out, or half an answer.
            return None

    def prepare(self, number, legs, **more):
        """Tries one round: (status, answer). 202: the same request again shows the outcome."""
        legs = [
            {
                "from": {"account": "FUNDING", "user_id": source},
                "to": {"account": "FUNDING", "user_id": target},
                "asset": self.options.asset,
                "amount": format(amount, "f"),
            }
            for source, target, amount in legs
        ]
        body = {"round": number, "legs": legs, "wait_ms": POLL_MS, **more}
        if number == 1:
            body |= {"decide": "caller", "ttl_ms": TTL_MS}

        def attempt():
            reply = self.ask("/prepare", body)
            return None if reply and reply[0] == 202 else reply

        return self.insist(attempt)

    def decide(self, rounds):
        """Runs the local transaction: True paid, False rolled back for good, None not known."""

        def attempt():
            try:
                self.psql(PAY, owner=self.options.owner, rounds=rounds)
                return True
            except Away:
                return None
            except Sql as refused:
                if refused.state in ("UB010", "UB012", "22012"):
                    return False
                if refused.state in ("UB005", "UB011", "40001", "40P01", "55P03", "57014"):
                    return None
                raise

        return self.insist(attempt)

    def pay(self):
        """Pays the order: the exit code, and the last answer."""
        options = self.options
        balance = options.price - options.envelope
        if self.psql(SCHEMA + BEGIN, price=options.price) == "FAILED":
            return REFUSED, {"message": "the order has failed before"}
        envelope = [{"name": options.participant, "payload": {"pool": options.pool, "count": 1}}]
        rounds = [([(options.envelopes_of, options.seller, options.envelope)], {"participants": envelope})]
        if balance > 0:
            rounds.append(([(options.buyer, options.seller, balance)], {}))
        for number, (legs, more) in enumerate(rounds, 1):
            reply = self.prepare(number, legs, **more)
            if reply is None or reply[0] in (401, 403):
                return UNKNOWN, reply and reply[1]
            # Decided by an earlier run of this program: the local transaction below shows it.
            if reply[0] == 409 and reply[1].get("code") == "TRANSACTION_DECIDED":
                break
            if reply[0] != 200:
                return self.give_up(reply[1])
        paid = self.decide(len(rounds))
        if paid is None:
            return UNKNOWN, {"message": "not known yet: run it again"}
        if not paid:
            return self.give_up({"message": "the transaction was aborted before the order was paid"})
        # From here on it is decided, also if this program dies. The hint saves the wait for the next tick.
        self.ask("/commit", {"rounds": len(rounds)})
        reply = self.insist(lambda: self.final())
        return PAID, reply[1] if reply else {"message": "paid; the money is being booked"}

    def final(self):
        reply = self.ask(f"?wait_ms={POLL_MS}")
        return reply if reply and reply[0] == 200 and reply[1].get("final") else None

    def give_up(self, answer):
        """Aborts, and marks the order once the abort is certain."""
        reply = self.insist(lambda: self.ask("/abort", {"reason": "the order cannot be paid"}))
        # Refused, for example, if an earlier run of this program has decided.
        if reply is None or reply[1].get("state") not in ("ABORTED", "CANCELLED"):
            return UNKNOWN, reply and reply[1]
        self.psql(FAIL)
        return REFUSED, answer


def main():
    parser = argparse.ArgumentParser(description="Pays an order with a red envelope and a balance.")
    parser.add_argument("order_id", type=int)
    parser.add_argument("--buyer", type=int, required=True)
    parser.add_argument("--seller", type=int, required=True)
    parser.add_argument("--asset", default="USDT")
    parser.add_argument("--price", type=decimal.Decimal, required=True)
    parser.add_argument("--envelope", type=decimal.Decimal, required=True, help="the part that the envelope pays")
    parser.add_argument("--envelopes-of", type=int, required=True, help="the user with the envelopes' money")
    parser.add_argument("--participant", default="red-envelope", help="its name in the service's configuration")
    parser.add_argument("--pool", default="spring")
    parser.add_argument("--owner", required=True, help="the name of this service, as in the token")
    parser.add_argument("--database", required=True, help="the database of Funding, as this service's own role")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--patience", type=float, default=60, help="seconds before giving up")
    options = parser.parse_args()
    token = os.environ.get("UBSCORE_TOKEN")
    if not token:
        parser.error("UBSCORE_TOKEN is not set")
    if not 0 < options.envelope <= options.price:
        parser.error("the envelope must be above 0, and at most the price")
    try:
        code, answer = Trade(options, token).pay()
    except Exception as error:  # An error of any kind shows nothing about the money.
        code, answer = UNKNOWN, {"message": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))
    return code


if __name__ == "__main__":
    sys.exit(main())
