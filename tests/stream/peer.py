"""A client's half of the contract, which knows nothing but the schema: the package `sbe` reads it.

Reads one JSON document from stdin, {"encode": [[message, fields], ...], "decode": [frame in hex, ...]}, and prints one,
{"encoded": [frame in hex, ...], "decoded": [[message, fields], ...]}.
"""

import json
import struct
import sys

import sbe

SOFH = struct.Struct(">IH")
SBE_LITTLE_ENDIAN = 0xEB50


def encode(schema, name, fields):
    message = next(message for message in schema.messages.values() if message.name == name)
    body = schema.encode(message, fields)
    return SOFH.pack(SOFH.size + len(body), SBE_LITTLE_ENDIAN) + body


def decode(schema, frame):
    length, encoding = SOFH.unpack_from(frame)
    assert (length, encoding) == (len(frame), SBE_LITTLE_ENDIAN), (length, encoding, len(frame))
    decoded = schema.decode(frame[SOFH.size:])
    return decoded.message_name, decoded.value


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = sbe.Schema.parse(file)
    asked = json.load(sys.stdin)
    encoded = [encode(schema, name, fields).hex() for name, fields in asked["encode"]]
    decoded = [decode(schema, bytes.fromhex(frame)) for frame in asked["decode"]]
    json.dump({"encoded": encoded, "decoded": decoded}, sys.stdout)


main()
