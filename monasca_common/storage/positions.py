# SPDX-License-Identifier: Apache-2.0
"""The stored offsets of each group, in the table ``kafka_offset``: the statements for both databases, and the rule for
start offsets.

Each call runs in its caller's transaction. The number of statements does not depend on the number of partitions.
`fence` checks a claim against the stored offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage import fence
from monasca_common.storage.base import Claim, TopicIds
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.fence import StoredNext

P = TypeVar("P", TopicPartition, int)


class Result(Protocol):
    def fetchall(self) -> Sequence[Any]: ...


#: The method ``execute`` of a psycopg or sqlite3 connection, or ``exec_driver_sql`` of a SQLAlchemy connection.
Execute = Callable[[str, Any], Result]


@dataclass(frozen=True, slots=True)
class AskedPosition:
    """One row of a statement's input. ``next_offset`` replaces the stored offset only if the stored offset is
    ``expected``."""

    partition: TopicPartition
    topic_id: str | None = None
    next_offset: int | None = None
    expected: int | None = None


def _as_arrays(group: str, rows: Sequence[AskedPosition]) -> dict[str, Any]:
    return {
        "consumer_group": group,
        "topics": [row.partition.topic for row in rows],
        "partitions": [row.partition.partition for row in rows],
        "topic_ids": [row.topic_id for row in rows],
        "offsets": [row.next_offset for row in rows],
        "expected": [row.expected for row in rows],
    }


def _as_json(group: str, rows: Sequence[AskedPosition]) -> dict[str, Any]:
    asked = [(*row.partition, row.topic_id, row.next_offset, row.expected) for row in rows]
    return {"consumer_group": group, "rows": json.dumps(asked)}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences between the databases: the input of a statement, as the table ``asked``, and the lock of a row
    against other transactions."""

    asked: str
    parameters: Callable[[str, Sequence[AskedPosition]], dict[str, Any]]
    lock: str
    of_topic: str


POSTGRESQL = Dialect(
    asked="""
        WITH asked AS (
            SELECT %(consumer_group)s::text AS consumer_group, item.*
            FROM unnest(
                %(topics)s::text[], %(partitions)s::int[], %(topic_ids)s::text[], %(offsets)s::bigint[],
                %(expected)s::bigint[]
            ) AS item (topic, partition, topic_id, next, expected)
        )
    """,
    parameters=_as_arrays,
    # The rows are ordered, so that two transactions that lock the same partitions do not deadlock.
    lock=" ORDER BY stored.topic, stored.partition FOR UPDATE OF stored",
    of_topic=" WHERE consumer_group = %(consumer_group)s AND topic = %(topic)s",
)
SQLITE = Dialect(
    # MATERIALIZED, because otherwise an UPDATE reads the JSON again for each row of the group: 13 s for 2,000
    # partitions.
    asked="""
        WITH asked (consumer_group, topic, partition, topic_id, next, expected) AS MATERIALIZED (
            SELECT :consumer_group, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
                json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]')
            FROM json_each(:rows)
        )
    """,
    parameters=_as_json,
    lock="",  # a writing transaction locks the whole file
    of_topic=" WHERE consumer_group = :consumer_group AND topic = :topic",
)
DIALECTS = {"postgresql": POSTGRESQL, "sqlite": SQLITE}

_COLUMNS = "topic, partition, next, topic_id"
_SAME = """
    stored.consumer_group = asked.consumer_group AND stored.topic = asked.topic AND stored.partition = asked.partition
"""
# CROSS JOIN makes SQLite look up each row by its key instead of reading the whole table.
SELECT = f"""
    SELECT stored.topic, stored.partition, stored.next, stored.topic_id
    FROM asked CROSS JOIN kafka_offset AS stored WHERE {_SAME}
"""
SELECT_TOPIC = f"SELECT {_COLUMNS} FROM kafka_offset"
_INSERT = """
    INSERT INTO kafka_offset AS stored (consumer_group, topic, partition, topic_id, next)
    SELECT consumer_group, topic, partition, topic_id, next FROM asked WHERE true
    ON CONFLICT (consumer_group, topic, partition) DO UPDATE SET
"""
# This also returns rows that other transactions change, in their state after these transactions have committed.
INSERT = f"{_INSERT} topic_id = coalesce(stored.topic_id, excluded.topic_id) RETURNING {_COLUMNS}"
PUT = f"{_INSERT} topic_id = excluded.topic_id, next = excluded.next"
DELETE = """
    DELETE FROM kafka_offset WHERE (consumer_group, topic, partition) IN
        (SELECT consumer_group, topic, partition FROM asked)
"""
COMPARE = " AND stored.next = asked.expected"
# The statement returns a row per updated row, because sqlite3 does not count updated rows if a statement begins with
# WITH.
_COUNTED = " RETURNING 1"
UPDATE = f"""
    UPDATE kafka_offset AS stored SET next = asked.next, topic_id = coalesce(stored.topic_id, asked.topic_id)
    FROM asked WHERE {_SAME}
"""


def first_reads(
    partitions: Iterable[P], begun: Mapping[P, int], resolve: Callable[[Sequence[P]], Mapping[P, int]]
) -> Mapping[P, int]:
    """Return the start offsets of those ``partitions`` of one topic that have no stored offset.

    ``begun``: the stored offsets of the topic. If it has none, ``resolve`` applies the option ``start``. A partition
    that is added later is always read from its beginning, so that no message is missed.
    """
    missing = sorted(set(partitions) - begun.keys())
    if begun or not missing:
        return dict.fromkeys(missing, 0)
    return resolve(missing)


class StoredPositions:
    """The stored offsets, within one transaction of ``execute``'s connection.

    Raises the errors of ``execute``, and `TopicMismatch` if the stored and the given id of a topic are both known and
    differ.
    """

    def __init__(self, execute: Execute, dialect: Dialect) -> None:
        self._execute = execute
        self._dialect = dialect

    def next_offsets(self, group: str, partitions: TopicIds) -> dict[TopicPartition, int]:
        """Return the stored offsets of the partitions that have one."""
        found = self._returned(SELECT, group, [AskedPosition(each) for each in partitions])
        return _checked(found, partitions)

    def of_topic(self, group: str, topic: str, topic_id: str | None) -> dict[int, int]:
        """Return the stored offsets of the topic."""
        statement = SELECT_TOPIC + self._dialect.of_topic
        found = _by_partition(self._execute(statement, {"consumer_group": group, "topic": topic}))
        return {each.partition: offset for each, offset in _checked(found, dict.fromkeys(found, topic_id)).items()}

    def begin(self, group: str, starts: Mapping[TopicPartition, int], topic_ids: TopicIds) -> dict[TopicPartition, int]:
        """Store the start offset of each partition that has no stored offset. Return the offsets that are then stored,
        possibly by another process."""
        return _checked(self._insert(group, starts, topic_ids), topic_ids)

    def lock(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StoredNext]:
        """Lock the stored offsets until this transaction ends, and return them."""
        return self._returned(SELECT, group, [AskedPosition(each) for each in sorted(partitions)], self._dialect.lock)

    def hold(self, claim: Claim) -> StoredNext:
        """Lock and return the stored offset of the claim's partition. If there is none, store ``claim.start``, because
        a partition starts with its first claim."""
        partition = claim.topic_partition
        found = self.lock(claim.group, [partition])
        found = found or self._insert(claim.group, {partition: claim.start}, {partition: claim.topic_id})
        return found[partition]

    def advance(self, claims: Mapping[Claim, StoredNext]) -> None:
        """Move each stored offset to the end of its claim, never backwards. All claims belong to one group.

        Raises `StorageUnavailable` if an offset has changed since it was read; the transaction must be rolled back.
        """
        moves = [
            AskedPosition(claim.topic_partition, claim.topic_id, claim.end, stored.next_offset)
            for claim, stored in claims.items()
            if claim.end > stored.next_offset
        ]
        if not moves:
            return
        group = next(iter(claims)).group
        updated = self._run(UPDATE + COMPARE + _COUNTED, group, moves).fetchall()
        if len(updated) != len(moves):
            topic, partition = moves[0].partition
            which = f"{topic}/{partition}" if len(moves) == 1 else f"{len(moves)} partitions of {topic}"
            raise StorageUnavailable(f"the stored offset of {which} changed within a transaction, which is rolled back")

    def accounted(self, claim: Claim) -> None:
        """Move the stored offset past ``claim``, which has no rows. A claim below the offset changes nothing.

        Raises `RangeBeyondNext`, and the errors of `advance`.
        """
        stored = self.hold(claim)
        fence.check_claim(claim, stored)
        self.advance({claim: stored})

    def reset(
        self, group: str, starts: Mapping[TopicPartition, int | None], topic_ids: TopicIds
    ) -> dict[TopicPartition, int]:
        """Replace the stored offsets and ids with these; ``None`` removes a row. Return the former offsets.

        It waits for transactions that are advancing the former offsets.
        """
        before = self.lock(group, starts)
        ordered = sorted(starts.items(), key=lambda item: item[0])
        self._run(DELETE, group, [AskedPosition(each) for each, offset in ordered if offset is None])
        kept = [AskedPosition(each, topic_ids.get(each), offset) for each, offset in ordered if offset is not None]
        self._run(PUT, group, kept)
        return {partition: stored.next_offset for partition, stored in before.items()}

    def _insert(
        self, group: str, starts: Mapping[TopicPartition, int], topic_ids: TopicIds
    ) -> dict[TopicPartition, StoredNext]:
        rows = [AskedPosition(partition, topic_ids.get(partition), starts[partition]) for partition in sorted(starts)]
        return self._returned(INSERT, group, rows)

    def _returned(
        self, statement: str, group: str, rows: Sequence[AskedPosition], suffix: str = ""
    ) -> dict[TopicPartition, StoredNext]:
        return _by_partition(self._run(statement + suffix, group, rows)) if rows else {}

    def _run(self, statement: str, group: str, rows: Sequence[AskedPosition]) -> Result:
        return self._execute(self._dialect.asked + statement, self._dialect.parameters(group, rows))


def _by_partition(result: Result) -> dict[TopicPartition, StoredNext]:
    return {TopicPartition(topic, number): StoredNext(int(at), id_) for topic, number, at, id_ in result.fetchall()}


def _checked(found: Mapping[TopicPartition, StoredNext], topic_ids: TopicIds) -> dict[TopicPartition, int]:
    for partition, stored in found.items():
        fence.check_topic(partition.topic, stored.topic_id, topic_ids.get(partition))
    return {partition: stored.next_offset for partition, stored in found.items()}
