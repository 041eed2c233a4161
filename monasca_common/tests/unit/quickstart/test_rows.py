# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import sqlite3
import tempfile
from pathlib import Path

from oslotest import base

from monasca_common.quickstart.poster import PostedBulk
from monasca_common.quickstart.rows import count


class CountTest(base.BaseTestCase):
    """What was posted against what is stored, on histories made by hand."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = Path(folder.name) / "rows.sqlite"
        self.metrics = [self.bulk(number, time_ms, 2) for number, time_ms in enumerate((100, 200))]
        self.events = [self.bulk(number, time_ms, 1) for number, time_ms in enumerate((100, 200))]

    def bulk(self, number, time_ms, size, *, acknowledged=True):
        return PostedBulk(number, time_ms, "/", None, size, acknowledged_at=1.0 if acknowledged else None)

    def store(self, times, numbers):
        with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("CREATE TABLE measurements (time)")
            connection.execute("CREATE TABLE events (payload)")
            connection.executemany("INSERT INTO measurements VALUES (?)", [(time_ms,) for time_ms in times])
            payloads = [(json.dumps({"number": number}),) for number in numbers]
            connection.executemany("INSERT INTO events VALUES (?)", payloads)

    def found(self):
        result = count(self.database, self.metrics, self.events)
        return result.rows, result.lost, result.duplicates

    def test_everything_is_there_once(self):
        self.store([100, 100, 200, 200], [0, 1])
        self.assertEqual((6, 0, 0), self.found())

    def test_a_row_that_is_missing_is_lost(self):
        self.store([100, 200, 200], [0, 1])
        self.assertEqual((5, 1, 0), self.found())

    def test_an_event_that_is_missing_is_lost(self):
        self.store([100, 100, 200, 200], [1])
        self.assertEqual((5, 1, 0), self.found())

    def test_a_row_too_many_is_a_duplicate(self):
        self.store([100, 100, 100, 200, 200], [0, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_an_event_that_is_there_twice_is_a_duplicate(self):
        self.store([100, 100, 200, 200], [0, 1, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_a_row_that_nobody_posted_is_a_duplicate(self):
        self.store([100, 100, 200, 200, 300], [0, 1])
        self.assertEqual((7, 0, 1), self.found())

    def test_a_loss_and_a_duplicate_do_not_cancel_out(self):
        self.store([100, 100, 100, 200], [0, 1])
        self.assertEqual((6, 1, 1), self.found())

    def test_what_was_never_acknowledged_is_not_lost(self):
        self.metrics[1] = self.bulk(1, 200, 2, acknowledged=False)
        self.events[1] = self.bulk(1, 200, 1, acknowledged=False)
        self.store([100, 100], [0])
        self.assertEqual((3, 0, 0), self.found())
