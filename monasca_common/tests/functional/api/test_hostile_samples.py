# SPDX-License-Identifier: Apache-2.0
"""Invalid requests of remote write to a worker: none is a server error, and its memory stays bounded."""

import cramjam
import psutil

from monasca_common.tests.functional.api.api_case import NOW_MS, ApiProcessCase
from monasca_common.tests.unit.models.write_request import label, number, part, request_2, sample, up

_MIB = 2**20
_MAX_GROWTH_BYTES = 250 * _MIB
_NAME = label("__name__", "up")


def nested(depth):
    content = b""
    for _ in range(depth):
        content = part(1, content)
    return content


def blocks():
    """Yield bodies that are invalid as snappy."""
    for size in (2**32 - 1, 2**40, 5 * _MIB, 1):
        yield number(size) + b"\x00a"
    yield number(5 * _MIB) + b"\x00a" + b"\xfe\x01\x00" * 80_000  # copies of one byte that overlap
    yield number(5 * _MIB) + b"\x00a" + b"\xfe\xff\xff" * 80_000  # copies from before the beginning
    yield b"\xff" * _MIB
    yield b""


def messages():
    """Yield messages of up to 5 MiB, most of them invalid."""
    yield part(1, b"".join(label(str(each), "v") for each in range(300_000)) + sample(1.0, NOW_MS))
    yield part(1, label("a", "b") * 500_000 + sample(1.0, NOW_MS))
    yield part(1, part(1, b"") * (2 * _MIB))
    yield part(1, b"") * (2 * _MIB)
    yield part(3, b"") * (2 * _MIB)
    yield part(1, _NAME + sample(0.0, NOW_MS) * 500_000)
    many = b"".join(label(f"{each:0255}", "x" * 255) for each in range(100))
    yield part(1, _NAME + many + sample(1.0, NOW_MS) * 19_000)
    yield part(1, _NAME + part(4, b"") * 1_000_000)
    yield part(1, _NAME + part(2, b"\xff" * 4 * _MIB))
    yield up((1.0, NOW_MS), a="x" * 5_000_000)
    yield up((1.0, NOW_MS), a=b"\xff" * 5_000_000)
    yield up(*[(1.0, -1)] * 19_000, a="x" * 4_000_000)
    yield nested(100_000)
    yield b"\x0b" * (4 * _MIB)
    yield b"\x80" * (4 * _MIB)
    yield up((1.0, NOW_MS), a="b")[:-3]


def messages_2():
    """Yield messages of remote write 2.0 of up to 5 MiB, most of them invalid."""
    yield part(5, b"") * (2 * _MIB)
    yield part(4, b"") * (2 * _MIB)
    yield part(4, b"") + part(5, part(1, b"\x00" * (4 * _MIB)) + sample(1.0, NOW_MS))
    yield part(4, b"") + part(5, part(1, b"\x00" * 10_000) + sample(1.0, NOW_MS)) * 500
    yield part(5, part(2, b"") * (2 * _MIB))
    yield part(5, part(4, b"") * (2 * _MIB))
    yield request_2(*[({"__name__": "up", "a": "x" * 4 * _MIB}, [(1.0, NOW_MS)])] * 10_000)
    for turn in range(20):  # labels with empty values, which are omitted
        names = (f"up{turn}_{each}" for each in range(15))
        yield request_2(*[({"__name__": name, "x" * _MIB: ""}, [(1.0, NOW_MS)]) for name in names])
    yield request_2(({"__name__": "up"}, [(1.0, NOW_MS)]))[:-3]


class HostileSamplesTest(ApiProcessCase):
    def test_hostile_samples_are_refused_in_bounded_memory(self):
        api = self.api()
        headers = {"Content-Encoding": "snappy"}

        def status(raw, message="prometheus.WriteRequest"):
            typed = {**headers, "Content-Type": f"application/x-protobuf;proto={message}"}
            return api.fetch("POST", "/api/v1/write", raw, typed)[0]

        def compressed(body):
            return bytes(cramjam.snappy.compress_raw(body))

        self.wait_until(lambda: status(compressed(up((1.0, NOW_MS)))) == 204)
        (worker,) = api.workers()
        before = psutil.Process(worker.pid).memory_info().rss
        grown, statuses = 0, set()
        for raw in (*blocks(), *map(compressed, messages())):
            statuses.add(status(raw))
            grown = max(grown, psutil.Process(worker.pid).memory_info().rss - before)
        for body in messages_2():
            statuses.add(status(compressed(body), "io.prometheus.write.v2.Request"))
            grown = max(grown, psutil.Process(worker.pid).memory_info().rss - before)
        self.assertEqual({204, 400, 413}, statuses)  # a request of only metadata is valid
        self.assertLess(grown, _MAX_GROWTH_BYTES)
        self.assertEqual(204, status(compressed(up((2.0, NOW_MS)))))
        self.assertEqual([worker.pid], [each.pid for each in api.workers()])
        self.assertNotIn(" ERROR ", api.text())
