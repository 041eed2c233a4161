# SPDX-License-Identifier: Apache-2.0
"""Encodes protobuf, and messages of remote write, also invalid ones."""

import struct

STALE = bytes.fromhex("020000000000f07f")


def number(value):
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def part(field, content):
    """Return a field that contains bytes."""
    return number(field << 3 | 2) + number(len(content)) + content


def label(name, value):
    return part(1, part(1, _bytes(name)) + part(2, _bytes(value)))


def sample(value, time_ms):
    """``value``: a number, or the 8 bytes of one. Like Prometheus, it writes no field with the value 0."""
    content = value if isinstance(value, bytes) else struct.pack("<d", value)
    return part(2, (content != bytes(8)) * (b"\x09" + content) + (time_ms != 0) * (b"\x10" + number(time_ms)))


def series(labels, *samples, more=b""):
    """``labels``: a mapping, or pairs; ``samples``: pairs of value and time; ``more``: further fields."""
    pairs = labels.items() if isinstance(labels, dict) else labels
    return part(1, b"".join([*(label(*pair) for pair in pairs), *(sample(*each) for each in samples), more]))


def up(*samples, **labels):
    return series({"__name__": "up", **labels}, *samples)


def _bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def request_2(*series):
    """Return a request of remote write 2.0. ``series``: tuples of labels, samples, and optionally further fields."""
    symbols, written = {"": 0}, []
    for labels, samples, *more in series:
        texts = [text for pair in (labels.items() if isinstance(labels, dict) else labels) for text in pair]
        references = b"".join(number(symbols.setdefault(text, len(symbols))) for text in texts)
        written.append(part(5, b"".join([part(1, references), *(sample(*each) for each in samples), *more])))
    return b"".join([*(part(4, _bytes(symbol)) for symbol in symbols), *written])
