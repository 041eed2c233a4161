# SPDX-License-Identifier: Apache-2.0
"""The contract of an operator's commands, for drivers whose schema this program manages."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from monasca_common.storage.base import Kind, StoredOffset, Written
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.sql import schema
from monasca_common.tests.contracts.storage.database import NOW_MS, Database
from monasca_common.tests.contracts.storage.scenario import (
    GROUP,
    TOPIC,
    TOPIC_ID,
    Scenario,
    measurement,
    message_id,
    row,
)

_DAY_MS = 86_400_000


class OperationContract(Scenario):
    if TYPE_CHECKING:

        def empty_database(self, **changes: Any) -> Database:
            """Return another database that is not prepared. ``changes``: fields of `StorageSettings`."""

    def test_without_a_schema_the_error_names_the_upgrade_command(self) -> None:
        storage = self.empty_database().storage()
        self.assertIsNone(storage.status().found)
        error = self.assertRaises(SchemaMismatch, storage.open_writer)
        self.assertIn("monasca-common db upgrade", str(error))
        storage.upgrade()
        storage.open_writer().close()

    def test_an_upgrade_keeps_stored_rows(self) -> None:
        self.write(self.database.writer(), Kind.METRICS, [measurement()])
        self.database.storage().upgrade()
        self.assertEqual([measurement()], self.stored(Kind.METRICS))

    def test_status_has_the_schema_and_the_stored_offsets(self) -> None:
        self.write(self.database.writer(), Kind.METRICS, [measurement()], 41)
        status = self.database.storage().status()
        self.assertEqual((schema.REVISION, schema.REVISION), (status.found, status.wanted))
        self.assertEqual((StoredOffset(GROUP, TOPIC, 0, TOPIC_ID, 42),), status.offsets)

    def test_pruning_removes_only_rows_older_than_their_retention(self) -> None:
        kinds = self.database.storage().kinds
        for kind in kinds:
            rows = [row(kind, 0), row(kind, 1), row(kind, 1, time_ms=NOW_MS - 10 * _DAY_MS)]
            self.write(self.writer, kind, rows, topic=kind)
        self._prune_at(NOW_MS)
        for kind in kinds:
            self.assertEqual(3, len(self.stored(kind)), kind)
        # A driver that removes whole days removes a day only when its last row is too old.
        self._prune_at(NOW_MS + (self.database.settings.default_retention_days - 5) * _DAY_MS)
        for kind in kinds:
            self.assertEqual(2, len(self.stored(kind)), kind)

    def test_a_writer_continues_after_all_rows_were_pruned(self) -> None:
        kinds = self.database.storage().kinds
        for kind in kinds:
            self.write(self.writer, kind, [row(kind, 0)], topic=kind)
        later_ms = NOW_MS + (self.database.settings.default_retention_days + 2) * _DAY_MS
        self.database.clock.now_ms = later_ms
        removed = self._prune_at(later_ms)
        self.assertEqual(set(map(str, kinds)) - {"metrics"} | {"measurements"}, set(removed) - {"series"})
        for kind in kinds:
            self.assertEqual([], self.stored(kind))
            written = self.write(self.writer, kind, [row(kind, 0, time_ms=later_ms)], 1, topic=kind)
            self.assertEqual(Written(stored=1), written)
        self.assertEqual([row(Kind.METRICS, 0, time_ms=later_ms)], self.stored(Kind.METRICS))

    def test_an_id_is_removed_with_its_row(self) -> None:
        retention_ms = self.database.settings.default_retention_days * _DAY_MS
        ids, by_id = [message_id(0)], [True]
        self.write(self.writer, Kind.LOGS, [row(Kind.LOGS)], ids=ids, by_id=by_id)
        self._prune_at(NOW_MS + retention_ms - 1)
        self.database.clock.now_ms = NOW_MS + retention_ms
        later = row(Kind.LOGS, time_ms=NOW_MS + retention_ms)
        self.assertEqual(Written(repeated=1), self.write(self.writer, Kind.LOGS, [later], 1, ids=ids, by_id=by_id))
        self.assertEqual({"logs", "logs_by_id"}, set(self._prune_at(NOW_MS + retention_ms + 2 * _DAY_MS)))
        self.assertEqual(Written(stored=1), self.write(self.writer, Kind.LOGS, [later], 2, ids=ids, by_id=by_id))

    def _prune_at(self, now_ms: int) -> Counter[str]:
        removed: Counter[str] = Counter()
        for step in self.database.storage().prune(now_ms):
            removed[step.table] += step.removed
        return removed
