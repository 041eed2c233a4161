# SPDX-License-Identifier: Apache-2.0
"""SQLite allows one writing process; other processes read and prune concurrently."""

import json
import os
import signal
import subprocess
import sys
import threading

from monasca_common.storage.base import Kind
from monasca_common.storage.errors import WriterAlreadyRuns
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.contracts.storage.scenario import Scenario, measurement
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

_DAY_MS = 86_400_000


class SqliteProcessesTest(Scenario, SqliteTestCase):
    def process(self):
        """Run another process with an open writer."""
        facts = {
            "driver": "sqlite",
            "connection": self.database.settings.connection,
            "progress": f"{self.folder}/progress",
            "length": 0,
            "batch": 1,
            "mutant": "waits_to_be_killed",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "monasca_common.tests.functional.storage.storage_program", json.dumps(facts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual("open", process.stdout.readline().strip())
        return process

    def test_a_second_writing_process_is_refused_with_the_first_one_named(self):
        process = self.process()
        error = self.assertRaises(WriterAlreadyRuns, self.database.storage().open_writer)
        self.assertIn(f"({process.pid})", str(error))

    def test_a_symbolic_link_does_not_circumvent_the_lock(self):
        self.process()
        link = f"{self.folder}/link.sqlite"
        os.symlink(self.database.storage().path, link)
        self.database.settings = StorageSettings("sqlite", f"sqlite:///{link}")
        self.assertRaises(WriterAlreadyRuns, self.database.storage().open_writer)

    def test_a_killed_writer_leaves_no_lock(self):
        process = self.process()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.write(self.database.writer(), Kind.METRICS, [measurement()])

    def test_after_a_writer_ends_another_can_start(self):
        process = self.process()
        process.communicate()
        self.assertEqual(0, process.returncode)
        self.database.writer()

    def test_a_child_of_a_killed_writer_does_not_keep_its_lock(self):
        self.database.writer().close()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:  # the writer, which forks and is killed
                self.database.storage().open_writer()
                if os.fork() == 0:
                    os.write(write, b"%d" % os.getpid())
                signal.pause()
            finally:
                os._exit(1)
        grandchild = int(os.read(read, 32))
        self.addCleanup(os.kill, grandchild, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.database.writer()

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
