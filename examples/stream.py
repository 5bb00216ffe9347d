#!/usr/bin/env python3
"""A venue's session: opens it, makes one trade, and prints each answer. Python's standard library only.

    UBSCORE_TOKEN=$(ubscore token --user 1 --venue 7) python3 examples/stream.py --socket /run/ubscore/stream.sock --venue 7

The trade: the buyer's quote and the seller's base are set apart, then one set of six legs moves both, takes both fees, and
gives the rest of each hold back. All six are booked, or none.

The messages are those of config/stream.sbe.xml. A real venue also keeps its numbers and their bodies on its disk before it
sends them, sends again what has no answer after a new Open, and sends Alive each second.

Exit code 0: the trade is done; 1: it is not; 2: wrong arguments.
"""

import argparse
import os
import socket
import struct
import sys

SOFH = struct.Struct(">IH")
HEADER = struct.Struct("<HHHH")
GROUP = struct.Struct("<HH")
LEG = struct.Struct("<QQQIBBH")
SBE_LITTLE_ENDIAN, SCHEMA, VERSION = 0xEB50, 1, 1
OPEN, OPENED, RESERVE, SETTLE, ACKNOWLEDGE, ANSWER, BACK, ALIVE, CLOSE = 1, 2, 3, 4, 7, 8, 9, 14, 15
AVAILABLE, HOLD = 1, 3
ALL = 2**64 - 1
SUCCESS, NO_LEG = 0, 255
TOKEN_BYTES = 900


class Session:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, template, block, legs=None):
        body = HEADER.pack(len(block), template, SCHEMA, VERSION) + block
        if legs is not None:
            body += GROUP.pack(LEG.size, len(legs)) + b"".join(LEG.pack(*leg) for leg in legs)
        self.socket.sendall(SOFH.pack(SOFH.size + len(body), SBE_LITTLE_ENDIAN) + body)

    def receive(self):
        """The next message but Alive: its template and its block."""
        while True:
            header = self.file.read(SOFH.size)
            if len(header) < SOFH.size:
                sys.exit("the connection has ended")
            length, encoding = SOFH.unpack(header)
            body = self.file.read(length - SOFH.size)
            block_length, template, schema, version = HEADER.unpack_from(body)
            assert (encoding, schema, version) == (SBE_LITTLE_ENDIAN, SCHEMA, VERSION), "another protocol"
            if template != ALIVE:
                return template, body[HEADER.size:HEADER.size + block_length]


def answer(session, number):
    """The code of the answer to a number, printed."""
    template, block = session.receive()
    if template == ANSWER:
        answered, record, code, leg = struct.unpack("<QQHB", block)
        assert answered == number, "answers come in the order of the numbers"
        where = "" if leg == NO_LEG else f", leg {leg}"
        print(f"answer {answered}: {'SUCCESS' if code == SUCCESS else f'code {code}{where}'}, record {record}")
        return code
    if template == BACK:
        after, after_ms, reason = struct.unpack("<QIB", block)
        sys.exit(f"back to {after}, reason {reason}, after {after_ms} ms")
    sys.exit(f"closed, reason {block[0]}" if template == CLOSE else f"message {template} came")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--venue", type=int, required=True)
    parser.add_argument("--buyer", type=int, default=1001)
    parser.add_argument("--seller", type=int, default=1002)
    parser.add_argument("--fees", type=int, default=1003, metavar="USER")
    parser.add_argument("--base", type=int, default=1, metavar="ASSET")
    parser.add_argument("--quote", type=int, default=3, metavar="ASSET")
    parser.add_argument("--quantity", type=int, default=100, help="smallest units of base")
    parser.add_argument("--cost", type=int, default=5_000, help="smallest units of quote")
    arguments = parser.parse_args()
    buyer, seller, fees = arguments.buyer, arguments.seller, arguments.fees
    base, quote, quantity, cost = arguments.base, arguments.quote, arguments.quantity, arguments.cost

    session = Session(arguments.socket)
    token = os.environ.get("UBSCORE_TOKEN", "").encode()
    session.send(OPEN, struct.pack("<QQI", 0, 0, arguments.venue) + token.ljust(TOKEN_BYTES, b"\0"))
    template, block = session.receive()
    if template != OPENED:
        sys.exit(f"not opened: closed, reason {block[0]}")
    epoch, last, acknowledged, durable, low, high, window = struct.unpack("<7Q", block)
    print(f"opened: epoch {epoch}, last {last}, acknowledged {acknowledged}, log {high << 64 | low:032x}")

    # All three at once: each is decided in its turn, and one sync makes them durable.
    bid, ask, trade = last + 1, last + 2, last + 3
    session.send(RESERVE, struct.pack("<QQQQQI", bid, 1, buyer, cost + cost // 10, 0, quote))
    session.send(RESERVE, struct.pack("<QQQQQI", ask, 2, seller, quantity, 0, base))
    legs = [
        (bid, seller, cost, quote, HOLD, AVAILABLE, 0),
        (ask, buyer, quantity, base, HOLD, AVAILABLE, 0),
        (seller, fees, cost // 1000, quote, AVAILABLE, AVAILABLE, 0),
        (buyer, fees, quantity // 100, base, AVAILABLE, AVAILABLE, 0),
        (bid, buyer, ALL, quote, HOLD, AVAILABLE, 0),
        (ask, seller, ALL, base, HOLD, AVAILABLE, 0),
    ]
    session.send(SETTLE, struct.pack("<QQ", trade, 3), legs)
    codes = [answer(session, number) for number in (bid, ask, trade)]
    session.send(ACKNOWLEDGE, struct.pack("<Q", trade))
    return 0 if codes == [SUCCESS] * 3 else 1


if __name__ == "__main__":
    sys.exit(main())
