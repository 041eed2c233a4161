# SPDX-License-Identifier: Apache-2.0
"""SQLite allows one writer at a time; other processes read, write and prune concurrently."""

import json
import subprocess
import sys
import threading

from monasca_common.storage.base import Kind
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.scenario import Scenario, measurement
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_DAY_MS = 86_400_000


class SqliteProcessesTest(Scenario, SqliteTestCase):
    def process(self, number):
        """Run another process that writes a log of each kind."""
        facts = {
            "driver": "sqlite",
            "connection": self.database.settings.connection,
            "progress": f"{self.folder}/progress-{number}",
            "length": 400,
            "batch": 10,
            "mutant": "",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "monasca_common.tests.functional.storage.storage_program", json.dumps(facts)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_rows_that_several_processes_write_are_stored_once(self):
        processes = [self.process(number) for number in range(3)]
        for process in processes:
            self.assertEqual("done\n", process.communicate()[0])
        self.assertEqual([400] * 3, [len(self.stored(kind)) for kind in (Kind.LOGS, Kind.METRICS, Kind.EVENTS)])

    def test_pruning_and_a_writer_can_run_concurrently(self):
        writer = self.database.writer()
        old = [measurement(n % 50, time_ms=NOW_MS + n) for n in range(15_000)]
        self.write(writer, Kind.METRICS, old)
        later_ms = NOW_MS + 100 * _DAY_MS
        self.database.clock.now_ms = later_ms
        removed = []
        pruning = threading.Thread(target=lambda: removed.extend(self.database.storage().prune(later_ms)))
        pruning.start()
        offset, written = len(old), 0
        while pruning.is_alive():
            rows = [measurement(written % 70, time_ms=later_ms + written)]
            offset += self.write(writer, Kind.METRICS, rows, offset).stored
            written += 1
        pruning.join()
        self.assertEqual(15_000, sum(step.removed for step in removed if step.table == "measurements"))
        stored = self.stored(Kind.METRICS)
        self.assertEqual(written, len(stored))
        self.assertNotIn(None, {each.series.name for each in stored})
