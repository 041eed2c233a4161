# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the endurance tool: its schedule, own count, judgement of each violation, and report."""

import itertools
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from xml.etree import ElementTree

import fixtures
import psutil
from oslotest import base

TOOLS = Path(__file__).parents[3] / "tools"
KINDS = tuple("abcdefgh")
MINUTE = 60.0


class EnduranceCase(base.BaseTestCase):
    """``self.<name>`` is the part of the tool with that name, which is in no package."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sys.path", [str(TOOLS), *sys.path]))
        import endurance
        from endurance_run import evidence, faults, judgement, load, report, samples

        self.command = endurance
        self.evidence, self.faults, self.judgement = evidence, faults, judgement
        self.load, self.report, self.samples = load, report, samples
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)


class ScheduleTest(EnduranceCase):
    def test_a_seed_repeats_its_schedule(self):
        plans = [self.faults.schedule(seed, 30, KINDS) for seed in (1, 1, 2)]
        self.assertEqual(plans[0], plans[1])
        self.assertNotEqual(plans[1], plans[2])

    def test_each_minute_except_the_first_has_one_fault(self):
        plan = self.faults.schedule(7, 30, KINDS)
        self.assertEqual(list(range(1, 30)), [int(fault.at_seconds // MINUTE) for fault in plan])

    def test_each_kind_of_fault_occurs_once_before_any_is_repeated(self):
        kinds = [fault.kind for fault in self.faults.schedule(3, 18, KINDS)]
        self.assertEqual(set(KINDS), set(kinds[:8]))
        self.assertEqual(set(KINDS), set(kinds[8:16]))

    def test_ten_minutes_contain_each_kind_of_fault(self):
        kinds = tuple(self.faults.FAULTS)
        self.assertEqual(set(kinds), {fault.kind for fault in self.faults.schedule(5, 10, kinds)})


class LoadTest(EnduranceCase):
    def test_a_seed_repeats_its_wave_which_crosses_the_threshold(self):
        first, again, other = (
            list(itertools.islice(self.load.wave(seed, series), 200)) for seed, series in ((1, 0), (1, 0), (1, 1))
        )
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual({9.0, 11.0}, set(first))

    def test_a_burst_triples_the_rate_for_twenty_seconds(self):
        rates = [self.load.rate_at(seconds, 100.0) for seconds in (299, 301, 319, 321, 901)]
        self.assertEqual([100.0, 300.0, 300.0, 100.0, 300.0], rates)

    def test_a_journal_shows_which_bulks_are_acknowledged_even_if_its_last_line_is_incomplete(self):
        journal = self.folder / "journal"
        records = [
            {"kind": "metrics", "number": 0, "time_ms": 5},
            {"kind": "metrics", "number": 1, "time_ms": 6},
            {"kind": "metrics", "number": 0},
        ]
        journal.write_text("\n".join(map(json.dumps, records)) + '\n{"kind": "met')
        found = self.load.read_journal(journal)
        self.assertEqual([True, False], [found["metrics", number].acknowledged for number in (0, 1)])
        self.assertEqual(6, found["metrics", 1].time_ms)


EXPECTED = {("a", 1): 1.0, ("a", 2): 2.0}


class StateTest(EnduranceCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "state.json"
        self.state = self.command.RunState(7, 10, 100.0, "id", 80, 90.0, 1)

    def test_a_state_is_read_as_it_was_written(self):
        self.state.injected = [self.faults.InjectedFault("kill", "api.2", 65.0, 80.0)]
        self.state.write(self.path)
        self.assertEqual(self.state, self.command.RunState.read(self.path))

    def test_a_fault_that_was_in_progress_ends_with_its_run(self):
        self.state.injected = [
            self.faults.InjectedFault("kill", "api.2", 5.0, 6.0),
            self.faults.InjectedFault("freeze", "interrupted", 65.0, math.inf),
        ]
        self.state.write(self.path)
        found = self.command.RunState.read(self.path)
        found.end_interrupted()
        self.assertEqual([6.0, 90.0], [fault.ended for fault in found.injected])


class ResumeTest(EnduranceCase):
    """A run that was resumed after 90 s of load, and whose jobs are ready after 200 s."""

    def injected(self, wait_for_jobs):
        resume = self.faults.InjectedFault("resume", "the complete stack", 90.0, math.inf)
        self.state = self.command.RunState(7, 10, 100.0, "id", 80, 90.0, 2, [resume])
        run = self.command.EnduranceRun(self.state, self.folder)
        run._stack.wait_for_jobs = wait_for_jobs
        run._began = time.monotonic() - 200.0
        run._inject([])
        return run

    def test_a_resume_ends_when_its_jobs_have_handled_a_batch(self):
        self.injected(lambda: None)
        [resume] = self.state.injected
        self.assertTrue(200.0 <= resume.ended < 220.0, resume)
        late = [self.samples.ErrorLine(seconds, "audit", "ERROR late") for seconds in (206.0, 300.0)]
        self.assertEqual(["300 s: audit: ERROR late"], self.judgement.error_violations(late, self.state.injected))

    def test_a_job_that_does_not_start_ends_the_run(self):
        failed = self.command.ServiceFailed("archive has ended")
        self.assertIs(failed, self.injected(mock.Mock(side_effect=failed))._failure)


class TierTest(EnduranceCase):
    def violations(self, *rows):
        return self.judgement.tier_violations([self.judgement.compare("rows", EXPECTED, rows)])

    def test_each_row_once_is_clean(self):
        self.assertEqual([], self.violations((("a", 1), 1.0), (("a", 2), 2.0)))

    def test_a_lost_row_is_a_violation(self):
        self.assertEqual(["rows: 1 of 2 lost, 0 duplicated, 0 wrong"], self.violations((("a", 1), 1.0)))

    def test_a_duplicate_is_a_violation(self):
        rows = list(EXPECTED.items())
        self.assertEqual(["rows: 0 of 2 lost, 1 duplicated, 0 wrong"], self.violations(*rows, rows[0]))

    def test_another_value_and_a_row_that_was_not_posted_are_violations(self):
        rows = (("a", 1), 1.0), (("a", 2), 3.0), (("b", 1), 1.0)
        self.assertEqual(["rows: 1 of 2 lost, 0 duplicated, 2 wrong"], self.violations(*rows))


ROW = {
    "topic": "metrics",
    "bucket": "12:00",
    "tier": "database",
    "application": "persister",
    "verdict": "OK",
    "lost": 0,
    "duplicates": 3,
    "surplus": 0,
}


class AuditTest(EnduranceCase):
    def test_a_complete_bucket_is_clean(self):
        self.assertEqual([], self.judgement.audit_violations([ROW]))

    def test_each_other_row_is_a_violation(self):
        for change in ({"verdict": "INCOMPLETE"}, {"verdict": "UNCOUNTED"}, {"lost": 1}, {"surplus": 1}):
            self.assertEqual(1, len(self.judgement.audit_violations([ROW, ROW | change])), change)

    def test_an_audit_without_rows_is_a_violation(self):
        self.assertEqual(1, len(self.judgement.audit_violations([])))

    def test_repeats_in_the_log_are_no_violation(self):
        self.assertEqual([], self.judgement.audit_violations([ROW | {"tier": "broker", "surplus": 30}]))


class AlarmTest(EnduranceCase):
    values = ((1000, 9.0), (2000, 11.0), (3000, 11.0), (4000, 9.0))

    def setUp(self):
        super().setUp()
        self.changes = self.judgement.expected_changes(self.evidence.EXPRESSION, self.values)

    def test_the_reference_evaluates_the_wave(self):
        expected = [("UNDETERMINED", "OK", 1000), ("OK", "ALARM", 2000), ("ALARM", "OK", 4000)]
        self.assertEqual(expected, self.changes)
        self.assertEqual([], self.judgement.expected_changes(self.evidence.EXPRESSION, []))

    def test_the_same_transitions_are_clean(self):
        self.assertEqual([], self.judgement.alarm_violations({"0": self.changes}, {"0": self.changes}))

    def test_a_missing_and_a_surplus_transition_are_violations(self):
        for found in (self.changes[1:], [*self.changes, self.changes[0]], [*self.changes, ("OK", "ALARM", 9)], []):
            self.assertEqual(1, len(self.judgement.alarm_violations({"0": self.changes}, {"0": found})))
        self.assertEqual(1, len(self.judgement.alarm_violations({}, {"0": self.changes})))

    def test_one_notification_too_few_or_too_many_is_a_violation(self):
        self.assertEqual([], self.judgement.notification_violations(3, 3, 0))
        self.assertEqual([], self.judgement.notification_violations(3, 2, 1))
        for accepted, superseded in ((2, 0), (4, 0), (3, 1)):
            self.assertEqual(1, len(self.judgement.notification_violations(3, accepted, superseded)))


class ErrorTest(EnduranceCase):
    def violations(self, *seconds):
        fault = self.faults.InjectedFault("kill", "api.2", 100.0, 110.0)
        errors = [self.samples.ErrorLine(each, "api.1", "ERROR x") for each in seconds]
        return self.judgement.error_violations(errors, [fault])

    def test_an_error_during_a_fault_and_its_recovery_is_explained(self):
        self.assertEqual([], self.violations(100.0, 105.0, 139.0))

    def test_an_error_without_a_fault_is_a_violation(self):
        self.assertEqual(["90 s: api.1: ERROR x"], self.violations(90.0, 101.0))
        self.assertEqual(["150 s: api.1: ERROR x"], self.violations(150.0))

    def test_the_first_errors_are_shown_and_the_others_counted(self):
        self.assertEqual("… and 3 more errors without a fault", self.violations(*range(8))[-1])

    def test_errors_are_found_as_they_are_written(self):
        log = self.folder / "log"
        log.write_text("INFO fine\n2026 ERROR bad\nTraceback (most recent call last):\nERROR half")
        watch = self.samples.LogWatch({"api.1": log})
        self.assertEqual(["2026 ERROR bad", "Traceback (most recent call last):"], [e.text for e in watch.errors(1.0)])
        log.write_text(log.read_text() + " a line\nno ERRORS here\n")
        self.assertEqual(["ERROR half a line"], [error.text for error in watch.errors(2.0)])

    def test_a_resumed_run_ignores_earlier_errors(self):
        log = self.folder / "log"
        log.write_text("ERROR old\n")
        self.assertEqual([], self.samples.LogWatch({"api.1": log}, skip=True).errors(1.0))


class SlopeTest(EnduranceCase):
    def slopes(self, quantity, per_hour, minutes, noise=0.0):
        """Judge samples every 10 s. They grow quickly during the warm-up, and then from 100 by ``per_hour``."""
        found = []
        for seconds in range(0, minutes * 60, 10):
            grown = 100.0 + per_hour * seconds / 3600 + noise * (-1) ** (seconds // 60)
            found.append(self.samples.Sample(seconds, {f"api.1 {quantity}": grown if seconds >= 120 else seconds / 2}))
        return self.judgement.slopes(found, warm_up_seconds=120.0)

    def violations(self, *arguments, **more):
        return self.judgement.slope_violations(self.slopes(*arguments, **more))

    def test_constant_and_noisy_quantities_are_clean(self):
        for quantity in ("memory_mib", "descriptors", "threads", "bytes_per_row", "post_p99_ms"):
            self.assertEqual(1, len(self.slopes(quantity, 0.0, 90)))
            self.assertEqual([], self.violations(quantity, 0.0, 90))
            self.assertEqual([], self.violations(quantity, 0.5, 90, noise=5.0))

    def test_a_leak_in_a_long_run_is_a_violation(self):
        for quantity in ("memory_mib", "descriptors", "threads"):
            self.assertEqual([], self.violations(quantity, 0.9, 90))
            self.assertEqual(1, len(self.violations(quantity, 1.1, 90)))
        for quantity in ("bytes_per_row", "post_p99_ms"):
            self.assertEqual([], self.violations(quantity, 4.9, 90))
            self.assertEqual(1, len(self.violations(quantity, 5.5, 90)))

    def test_a_leak_in_a_short_run_is_a_violation(self):
        self.assertEqual([], self.violations("memory_mib", 100.0, 10))
        self.assertEqual(1, len(self.violations("memory_mib", 300.0, 10)))

    def test_one_high_minute_of_a_short_run_is_not_a_leak(self):
        found = [
            self.samples.Sample(minute * 60, {"archive descriptors": value})
            for minute, value in enumerate((540.0, 560.0, 552.0, 571.0, 569.0, 698.0))
        ]
        [slope] = self.judgement.slopes(found, warm_up_seconds=0.0)
        self.assertGreater(slope.growth, 100.0)
        self.assertFalse(slope.is_violated)

    def test_few_points_need_more_standard_errors(self):
        # The quantiles of Student's t that are as probable as three standard errors of many points
        for points, expected in ((6, 6.62), (8, 4.90), (39, 3.20), (1000, 3.01)):
            self.assertAlmostEqual(expected, self.judgement._standard_errors(points), delta=0.12 * expected)

    def test_a_run_that_is_too_short_has_no_slope(self):
        self.assertEqual([], self.slopes("memory_mib", 300.0, 5))

    def test_a_resumed_run_is_judged_by_its_longest_piece(self):
        first = [self.samples.Sample(seconds, {"api.1 memory_mib": 500.0}, 1) for seconds in range(0, 300, 10)]
        leaking = [
            self.samples.Sample(seconds, {"api.1 memory_mib": 100.0 + seconds}, 2) for seconds in range(300, 1500, 10)
        ]
        [slope] = self.judgement.slopes(first + leaking, warm_up_seconds=120.0)
        self.assertAlmostEqual(17 * MINUTE, slope.growth)
        self.assertTrue(slope.is_violated)
        self.assertEqual([], self.judgement.slopes([], warm_up_seconds=120.0))

    def test_cpu_time_is_judged_by_minute(self):
        used = lambda seconds, growth: seconds / 60 + growth * (seconds / 60) ** 2  # noqa: E731
        for growth, count in ((0.0, 0), (0.1, 1)):
            found = [
                self.samples.Sample(seconds, {"api.1 cpu_seconds": used(seconds, growth)})
                for seconds in range(0, 7200, 10)
            ]
            slopes = self.judgement.slopes(found, warm_up_seconds=0.0)
            self.assertEqual(["api.1 cpu_per_minute"], [slope.name for slope in slopes])
            self.assertEqual(count, len(self.judgement.slope_violations(slopes)))


class MemoryTest(EnduranceCase):
    def test_memory_is_what_a_process_has_written_without_the_pages_of_files(self):
        status = "VmRSS:\t  90112 kB\nRssAnon:\t   61440 kB\nRssFile:\t   28672 kB\nVmSwap:\t    1024 kB\n"
        self.assertEqual(61.0, self.samples.own_memory_mib(status))

    def test_a_process_that_allocates_memory_grows(self):
        def memory():
            return self.samples.process_values("own", [psutil.Process()])["own memory_mib"]

        before = memory()
        block = b"x" * (64 << 20)
        self.assertGreater(memory(), before + 50)
        del block

    def jvm(self, answer, name="java"):
        """Return a process, with a ``jcmd`` next to its program that prints ``answer``; ``None``: without it."""
        if answer is not None:
            jcmd = self.folder / "jcmd"
            jcmd.write_text(f"#!/bin/sh\n[ \"$*\" = '7 GC.class_histogram' ] && printf '%s' '{answer}'\n")
            jcmd.chmod(0o755)
        return SimpleNamespace(pid=7, name=lambda: name, exe=lambda: str(self.folder / "java"))

    def test_a_heap_is_what_a_full_collection_leaves(self):
        answer = "7:\n num  #instances  #bytes  class name\n   1:  9  72  [B (java.base)\nTotal    475868   54525952\n"
        self.assertEqual({"evaluate heap_mib": 52.0}, self.samples.heap_values("evaluate", [self.jvm(answer)]))

    def test_a_process_without_a_heap_or_jcmd_has_no_value(self):
        for answer, name in ((None, "java"), ("7:\nno such process\n", "java"), ("Total 1 8\n", "python")):
            self.assertEqual({}, self.samples.heap_values("evaluate", [self.jvm(answer, name)]))


class ReportTest(EnduranceCase):
    def outcome(self, **changes):
        outcome = self.report.Outcome(7, 10, 100.0, "python tools/endurance.py --minutes 10")
        outcome.faults = [self.faults.InjectedFault("kill", "api.2", 65.0, 80.0)]
        outcome.tiers = [self.judgement.Tier("log", 5, 5, 0, 0)]
        for name, value in changes.items():
            setattr(outcome, name, value)
        return outcome

    def written(self, **changes):
        path = self.folder / "endurance.md"
        self.report.write(path, self.outcome(**changes), {"api.1 memory_mib": [(0.0, 1.0), (1.0, 2.0)]})
        return path.read_text()

    def test_a_clean_run_is_reported_with_its_command_seed_and_faults(self):
        text = self.written()
        for part in ("Verdict: clean", "--minutes 10", "| Seed | 7 |", "| 65 | kill | api.2 | 15 |", "cores", "Kafka"):
            self.assertIn(part, text)

    def test_violations_are_listed(self):
        text = self.written(violations=["log: 1 of 5 lost", "api.1 memory_mib grew"])
        self.assertIn("Verdict: 2 violations", text)
        self.assertIn("- log: 1 of 5 lost", text)

    def test_a_skipped_kind_has_its_reason(self):
        self.assertIn("full disk (requires root)", self.written(skipped={"full disk": "requires root"}))

    def test_a_plot_is_valid_xml_with_each_line_and_fault(self):
        self.assertIn("![memory_mib](endurance-memory_mib.svg)", self.written())
        root = ElementTree.parse(self.folder / "endurance-memory_mib.svg").getroot()
        kinds = [element.tag.rpartition("}")[2] for element in root]
        self.assertEqual((1, 1), (kinds.count("polyline"), kinds.count("path")))

    def test_a_plot_escapes_its_texts(self):
        ElementTree.fromstring(self.report.svg("a < b", {"x & y": [(0.0, 0.0)]}, [0.5]))
