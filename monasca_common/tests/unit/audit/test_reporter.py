# SPDX-License-Identifier: Apache-2.0
"""Reports survive the end of their process and unavailable brokers."""

import os
import pathlib
import subprocess
import sys
from unittest import mock

import fixtures

from monasca_common.audit import reports
from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import AuditCount, AuditReport, HandledRange
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.tests.unit.audit.audit_case import START_MS, TOPIC, AuditCase

_KILLED = """
import os, signal, sys
from monasca_common.audit import reports
from monasca_common.audit.journal import Journal
from monasca_common.audit.reports import AuditReport
journal = Journal(sys.argv[1])
for number in range(2):
    journal.add(AuditReport(f"r{number}", "api", "api", "h", "i", 0, 60))
os.write(journal._file, b'{"id": "cut o')
os.kill(os.getpid(), signal.SIGKILL)
"""


class ReporterTest(AuditCase):
    def files(self):
        return sorted(pathlib.Path(self.folder).iterdir())

    def test_reports_of_a_killed_process_are_sent_by_the_next_one(self):
        subprocess.run([sys.executable, "-c", _KILLED, self.folder], check=False)
        self.assertEqual(1, len(self.files()))
        with self.reporter("api") as reporter:
            reporter.report()

        self.assertEqual(["r0", "r1"], [report.id for report in self.reports()])
        self.assertEqual([], self.files())

    def test_held_reports_of_a_killed_process_are_sent_by_the_next_one(self):
        journal = Journal(self.folder)
        journal.add(self.audit_report("held"), held=True)
        self.assertEqual([], journal.pending())
        journal.close()
        after = self.opened_journal()
        after.adopt()

        self.assertEqual(["held"], [report.id for report in after.pending()])

    def test_a_report_that_is_cut_off_by_a_full_disk_spoils_none_after_it(self):
        journal = Journal(self.folder)
        write = os.write
        with mock.patch("os.write", side_effect=lambda file, line: write(file, line[:10])):
            journal.add(self.audit_report("cut off"))
        journal.add(self.audit_report("whole"))
        journal.close()
        after = self.opened_journal()
        after.adopt()

        self.assertEqual(["whole"], [report.id for report in after.pending()])

    def test_the_file_of_another_one_stays_while_its_reports_are_not_on_the_disk_again(self):
        journal = Journal(self.folder)
        journal.add(self.audit_report("one"))
        journal.close()
        after = self.opened_journal()
        with mock.patch("os.write", side_effect=OSError("full")):
            after.adopt()

        self.assertEqual(["one"], [report.id for report in after.pending()])
        self.assertEqual(2, len(self.files()))

    def test_a_journal_that_is_closed_writes_to_no_file(self):
        journal = Journal(self.folder)
        number = journal._file
        other = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "other")
        other.write_bytes(b"kept")
        with other.open("r+b") as file:
            journal.close()
            os.dup2(file.fileno(), number)
            self.addCleanup(os.close, number)
        journal.add(self.audit_report("one"))
        journal.done(["one"])

        self.assertEqual(b"kept", other.read_bytes())

    def test_the_file_is_limited_and_keeps_unacknowledged_reports(self):
        self.limit("_MAX_BYTES", 2000)
        journal = self.opened_journal()
        journal.add(self.audit_report("waits"))
        for number in range(100):
            journal.add(self.audit_report(f"r{number}"))
            self.assertLess(self.files()[0].stat().st_size, 4000)
            journal.done([f"r{number}"])

        self.assertEqual(["waits"], [report.id for report in journal.pending()])
        self.assertEqual(["waits", "r99"], self.left_in_the_files()[:1] + self.left_in_the_files()[-1:])

    def test_the_oldest_reports_are_dropped_and_counted_where_too_much_waits(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.limit("_MAX_BYTES", 2000)
        journal = self.opened_journal()
        for number in range(100):
            journal.add(self.audit_report(f"r{number}"))
        waiting = [report.id for report in journal.pending()]

        self.assertTrue(0 < len(waiting) < 30)
        self.assertEqual("r99", waiting[-1])
        self.assertLess(sum(path.stat().st_size for path in self.files()), 4000)
        self.assertIn("1 audit reports were dropped", log.output)
        self.assertLessEqual(set(waiting), set(self.left_in_the_files()))

    def test_a_file_that_cannot_be_written_anew_costs_no_report(self):
        self.limit("_MAX_BYTES", 2000)
        journal = self.opened_journal()
        with mock.patch.object(Journal, "_own_file", side_effect=OSError("too many files")):
            for number in range(30):
                journal.add(self.audit_report(f"r{number}"))
        size = self.files()[0].stat().st_size

        self.assertLess(size, 4000)
        self.assertIn("r29", [report.id for report in journal.pending()])

    def limit(self, name, value):
        self.useFixture(fixtures.MonkeyPatch(f"monasca_common.audit.journal.{name}", value))

    def left_in_the_files(self):
        lines = [line for path in self.files() for line in path.read_bytes().splitlines() if line]
        return [reports.decode(line).id for line in lines]

    def audit_report(self, name):
        return AuditReport(name, "api", "api", "h", "i", 0, 60)

    def opened_journal(self):
        journal = Journal(self.folder)
        self.addCleanup(journal.close)
        return journal

    def test_reports_of_a_living_process_are_not_taken_over(self):
        living = Journal(self.folder)
        self.addCleanup(living.close)
        with self.reporter("api") as reporter:
            reporter.counted([AuditCount(TOPIC, START_MS, 1)])
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

        self.assertEqual([waiting.id], [report.id for report in self.reports()])

    def test_reports_of_a_service_that_uses_transactions_are_in_none(self):
        with self.reporter("api", transactional_id="of the service") as reporter:
            self.assertIsNone(reporter._producer.settings.transactional_id)

    def test_a_report_sent_twice_has_one_id(self):
        with self.reporter("api") as reporter:
            reporter.counted([AuditCount(TOPIC, START_MS, 3)])
            pending = reporter._journal.pending()
            reporter.report()
            for report in pending:
                reporter._journal.add(report)
            reporter.report()

        self.assertEqual(2, len(self.reports()))
        self.assertEqual(1, len({report.id for report in self.reports()}))
        self.assertEqual(3, self.reconciliations()[0, "api"].messages)

    def test_a_folder_that_cannot_be_used_is_named(self):
        path = os.path.join(self.folder, "file")
        pathlib.Path(path).write_text("")

        error = self.assertRaises(ConfigurationError, Journal, path)
        self.assertIn("folder in group [audit]", str(error))
