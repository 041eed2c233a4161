# SPDX-License-Identifier: Apache-2.0
"""JSON texts that have broken parsers, and a strategy that generates envelopes from them."""

import json

from hypothesis import strategies as st

DEEP = b"[" * 100_000 + b"]" * 100_000
VALUES = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 400, b"9" * 5000, b"-0.0", b"1e-999", b"01", b"0x1",
    b"true", b"false", b"null", b'""', b'"5"', b"[]", b"{}", b"[[]]", b'{"a":1}', b'{"":""}', b'"\\u0000"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\n"', b'"\\x"', b"", b"-", b'"', b"{", b"nul", b"5 5", b"5,5",
    b"9223372036854775807", b"9223372036854775808", b"-1", b"1.5", b"1e3", b'{"a":1,"a":2}', b"\xef\xbb\xbf1", DEEP,
    b'{"k":"' + b"v" * 256 + b'"}', b'{"' + b"k" * 256 + b'":"v"}', b'{"k":"\\u0000"}', b'{"_k":"<"}',
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TEXTS = TREES.map(lambda value: json.dumps(value).encode()) | st.sampled_from(VALUES) | st.binary(max_size=8)


def members(*names: str) -> st.SearchStrategy[bytes]:
    """Generate objects with some of these members and any values."""
    pairs = st.dictionaries(st.sampled_from(names), TEXTS, max_size=len(names))
    return pairs.map(lambda parts: b"{%b}" % b",".join(b'"%b":%b' % (k.encode(), v) for k, v in parts.items()))
