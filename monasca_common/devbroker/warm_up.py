# SPDX-License-Identifier: Apache-2.0
"""Let a new cluster create its internal topics during the start instead of at the first request of a client.

A new cluster creates the topics of groups and transactions when they are first needed. A client retries only after a
second, so its first message takes 1 s and its first join 3.7 s. Requests every few hundredths of a second take 0.2 s.
"""

import functools
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from monasca_common.devbroker.errors import BrokerTooSlow
from monasca_common.devbroker.framing import ApiKey
from monasca_common.devbroker.wire import Connection, string

# More ids than partitions of these topics, so that almost every partition is requested.
_IDS = tuple(f"warm-up-{number}" for number in range(8))
_PAUSE_SECONDS = 0.02
_GROUP, _TRANSACTION = 0, 1
_TRANSACTION_TIMEOUT_MS = 1000
_NULL_STRING = struct.pack(">h", -1)

Ask = Callable[[], bool]


def warm_up(ports: Sequence[int], login: Mapping[str, str], timeout: float) -> None:
    """Wait until every node provides producer ids, and every coordinator of groups and transactions answers.

    ``ports`` are those of the brokers' own listeners; ``login`` has librdkafka's ``sasl.username`` and
    ``sasl.password``, or is empty. Raises `BrokerTooSlow` after ``timeout`` seconds.
    """
    connections = {port: Connection(port, timeout) for port in ports}
    try:
        if login:
            for connection in connections.values():
                connection.log_in(login["sasl.username"], login["sasl.password"])
        _ask_until_ready(_questions(connections), timeout)
    finally:
        for connection in connections.values():
            connection.close()


def _ask_until_ready(waiting: list[Ask], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while waiting := [ask for ask in waiting if not ask()]:
        if time.monotonic() >= deadline:
            raise BrokerTooSlow("the coordinators of groups and transactions did not answer", timeout)
        time.sleep(_PAUSE_SECONDS)


def _questions(connections: Mapping[int, Connection]) -> list[Ask]:
    first = next(iter(connections.values()))

    def producer_id(connection: Connection, transactional_id: bytes = _NULL_STRING) -> bool:
        body = transactional_id + struct.pack(">i", _TRANSACTION_TIMEOUT_MS)
        answer = connection.ask(ApiKey.INIT_PRODUCER_ID, 0, body)
        return _int16(answer, 4) == 0  # throttle time (4 bytes), error

    def group(group_id: str) -> bool:
        port = _coordinator(first, group_id, _GROUP)
        if port is None:
            return False
        no_topics = struct.pack(">i", 0)
        answer = connections[port].ask(ApiKey.OFFSET_FETCH, 2, string(group_id) + no_topics)
        return _int16(answer, len(answer) - 2) == 0  # the error comes last

    def transaction(transactional_id: str) -> bool:
        port = _coordinator(first, transactional_id, _TRANSACTION)
        return port is not None and producer_id(connections[port], string(transactional_id))

    return [
        *(functools.partial(producer_id, connection) for connection in connections.values()),
        *(functools.partial(group, name) for name in _IDS),
        *(functools.partial(transaction, name) for name in _IDS),
    ]


def _coordinator(connection: Connection, key: str, kind: int) -> int | None:
    """Return the port of the coordinator, or None."""
    answer = connection.ask(ApiKey.FIND_COORDINATOR, 1, string(key) + struct.pack(">b", kind))
    if _int16(answer, 4) != 0:  # throttle time (4 bytes), error
        return None
    return int(struct.unpack(">i", answer[-4:])[0])  # the port comes last


def _int16(answer: bytes, at: int) -> int:
    return int(struct.unpack_from(">h", answer, at)[0])
