# SPDX-License-Identifier: Apache-2.0
"""Reports survive the end of their process and unavailable brokers."""

import contextlib
import dataclasses
import errno
import pathlib
import sqlite3
import subprocess
import sys
import uuid
from unittest import mock

import fixtures

from monasca_common.audit import reports
from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import AuditCount, AuditReport, HandledRange
from monasca_common.kafka import open_producer
from monasca_common.kafka.testing import Fail
from monasca_common.tests.unit.audit.audit_case import START_MS, TOPIC, AuditCase

_KILLED = """
import os, signal, sys
from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import AuditReport
journal = Journal(sys.argv[1])
for number in range(2):
    journal.add(AuditReport(f"r{number}", "api", "api", 0, 60))
os.kill(os.getpid(), signal.SIGKILL)
"""


class ReporterTest(AuditCase):
    def files(self):
        return sorted(pathlib.Path(self.folder).glob("*.sqlite"))

    def test_reports_of_a_killed_process_are_sent_by_the_next_one(self):
        subprocess.run([sys.executable, "-c", _KILLED, self.folder], check=False)
        self.assertEqual(1, len(self.files()))
        with self.reporter("api") as reporter:
            reporter.report()

        self.assertEqual(["r0", "r1"], [report.id for report in self.reports()])
        self.assertEqual([], list(pathlib.Path(self.folder).iterdir()))

    def test_held_reports_of_a_killed_process_are_sent_by_the_next_one(self):
        journal = Journal(self.folder)
        journal.add(self.audit_report("held"), held=True)
        self.assertEqual({}, journal.pending())
        journal.close()
        after = self.opened_journal()
        after.adopt()

        self.assertEqual(["held"], list(after.pending()))

    def test_reports_are_kept_in_memory_while_the_disk_is_full(self):
        log = self.useFixture(fixtures.FakeLogger())
        journal = self.opened_journal()
        self.fill(journal)
        names = [f"r{number}" for number in range(200)]
        for name in names:
            journal.add(self.audit_report(name))

        self.assertEqual(names, list(journal.pending()))
        self.assertEqual(1, log.output.count("a crash loses unsent reports"))

    def test_a_start_on_a_full_disk_keeps_reports_in_memory(self):
        log = self.useFixture(fixtures.FakeLogger())
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        for target, error in (("sqlite3.connect", full), ("pathlib.Path.touch", OSError(errno.ENOSPC, "no space"))):
            with mock.patch(target, side_effect=[error, mock.DEFAULT], wraps=sqlite3.connect):
                journal = Journal(self.folder)
            journal.add(self.audit_report("r1"))
            self.assertEqual((["r1"], []), (list(journal.pending()), self.files()))
            journal.close()

        self.assertEqual(2, log.output.count("a crash loses unsent reports"))

    def test_reports_are_kept_in_memory_if_the_disk_is_broken(self):
        self.useFixture(fixtures.FakeLogger())
        journal, broken = self.opened_journal(), mock.MagicMock()
        self.addCleanup(journal._database.close)
        broken.execute.side_effect = broken.backup.side_effect = sqlite3.OperationalError("disk I/O error")
        journal._database = broken
        journal.add(self.audit_report("r1"))

        self.assertEqual(["r1"], list(journal.pending()))

    def test_reports_that_a_broken_disk_does_not_return_are_sent_by_the_next_process(self):
        self.useFixture(fixtures.FakeLogger())
        journal, broken = Journal(self.folder), mock.MagicMock()
        journal.add(self.audit_report("r0"))
        broken.execute.side_effect = broken.backup.side_effect = sqlite3.OperationalError("disk I/O error")
        broken.close = journal._database.close
        journal._database = broken
        journal.add(self.audit_report("r1"))
        journal.done(["r1"])
        journal.close()

        following = self.opened_journal()
        following.adopt()
        self.assertEqual(["r0"], list(following.pending()))

    def test_reports_that_cannot_be_taken_over_stay_in_their_file(self):
        journal = Journal(self.folder)
        for number in range(200):
            journal.add(self.audit_report(f"r{number}"))
        journal.close()
        after = self.opened_journal()
        self.fill(after)
        after.adopt()

        self.assertEqual({}, after.pending())
        self.assertEqual(2, len(self.files()))

    def fill(self, journal):
        """Fill the disk, so that the journal has no space."""
        journal._database.execute("PRAGMA max_page_count = 4")

    def test_a_file_that_is_not_a_journal_is_logged_and_kept(self):
        log = self.useFixture(fixtures.FakeLogger())
        path = pathlib.Path(self.folder, f"{uuid.uuid4().hex}.sqlite")
        path.write_text("something else " * 1000)
        self.opened_journal().adopt()

        self.assertTrue(path.exists())
        self.assertIn(f"the audit reports in {path} cannot be taken over", log.output)

    def test_another_database_in_the_folder_is_kept(self):
        path = pathlib.Path(self.folder, "monasca.sqlite")
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE measurement (value REAL)")
        before = path.read_bytes()
        self.opened_journal().adopt()

        self.assertEqual(before, path.read_bytes())

    def test_the_oldest_reports_are_dropped_if_too_many_are_pending(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.useFixture(fixtures.MonkeyPatch("monasca_common.audit.journal._MAX_PENDING", 10))
        journal = self.opened_journal()
        for outages in (1, 2):
            for number in range(100):
                journal.add(self.audit_report(f"r{number}"))

            self.assertEqual([f"r{number}" for number in range(90, 100)], list(journal.pending()))
            self.assertEqual(outages, log.output.count("audit reports are dropped"))
            journal.done(journal.pending())

    def audit_report(self, name):
        return AuditReport(name, "api", "api", 0, 60)

    def opened_journal(self):
        journal = Journal(self.folder)
        self.addCleanup(journal.close)
        return journal

    def test_reports_of_a_running_process_are_not_taken_over(self):
        living = Journal(self.folder)
        self.addCleanup(living.close)
        with self.reporter("api") as reporter:
            reporter.handled([HandledRange(TOPIC, 0, 0, 1)])
            reporter.report()

        self.assertEqual(1, len(self.reports()))
        self.assertEqual(1, len(self.files()))

    def test_reports_wait_for_the_brokers_and_keep_their_ids(self):
        with self.reporter("api", publish_timeout_seconds=0.0) as reporter:
            reporter.handled([HandledRange(TOPIC, 0, 0, 5)])
            (waiting,) = reporter._journal.pending()
            self.kafka.broker.disconnect()
            self.assertFalse(reporter.report())
            self.assertEqual([], self.reports())
            self.kafka.broker.reconnect()
            while not reporter.report():
                pass

        self.assertEqual([waiting], [report.id for report in self.reports()])

    def test_reports_are_sent_after_a_fatal_error_of_the_producer(self):
        self.useFixture(fixtures.FakeLogger())
        self.kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        with self.reporter("api") as reporter:
            reporter.handled([HandledRange(TOPIC, 0, 0, 5)])
            self.assertEqual([False, True], [reporter.report() for _ in range(2)])
        self.assertEqual(1, len(self.reports()))

    def test_counts_are_journaled_if_a_close_ends_before_the_report_in_progress(self):
        self.useFixture(fixtures.FakeLogger())
        self.useFixture(fixtures.MonkeyPatch("monasca_common.audit.reporter.CLOSE_SECONDS", 0.0))
        reporter = self.reporter("producer", publish_timeout_seconds=0.0).open()
        with open_producer(reporter.audited(self.kafka.producer_settings())) as producer:
            producer.publish(TOPIC, [b"1", b"2", b"3"]).raise_for_undelivered()
        with reporter._reporting:
            reporter.close()
        with self.reporter("producer") as after:
            after.report()

        self.assertEqual(3, self.reconciliations()[0, "producer"].messages)

    def test_reports_of_a_transactional_service_are_sent_outside_transactions(self):
        with self.reporter("api", transactional_id="of the service") as reporter:
            self.assertIsNone(reporter._producer.settings.transactional_id)

    def test_a_report_sent_twice_has_one_id(self):
        with self.reporter("api") as reporter:
            reporter._add(counts=(AuditCount(TOPIC, START_MS, 3),))
            pending = reporter._journal.pending()
            reporter.report()
            for report in map(reports.decode, pending.values()):
                reporter._journal.add(report)
            reporter.report()

        self.assertEqual(2, len(self.reports()))
        self.assertEqual(1, len({report.id for report in self.reports()}))
        self.assertEqual(3, self.reconciliations()[0, "api"].messages)

    def test_reports_are_kept_in_memory_if_the_folder_is_not_usable(self):
        log = self.useFixture(fixtures.FakeLogger())
        path = pathlib.Path(self.folder, "file")
        path.touch()
        self.settings = dataclasses.replace(self.settings, folder=str(path))
        with self.reporter("api") as reporter:
            reporter.handled([HandledRange(TOPIC, 0, 0, 1)])
            reporter.report()

        self.assertEqual(1, len(self.reports()))
        self.assertIn("folder in group [audit] is not usable; until a restart, a crash loses unsent", log.output)

    def test_a_folder_that_becomes_read_only_does_not_prevent_a_stop(self):
        journal = Journal(self.folder)
        with mock.patch.object(pathlib.Path, "unlink", side_effect=OSError(errno.EROFS, "read-only file system")):
            journal.close()
        self.assertEqual(1, len(self.files()))
