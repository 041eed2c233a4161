# SPDX-License-Identifier: Apache-2.0
"""The job evaluate over time: silence, outages, pauses, fast clocks, and a group that Kafka has lost. The test sets
the clock: records have the times at which they are sent, and the clock advances between them."""

from types import MappingProxyType
from unittest import mock

import confluent_kafka.admin

from monasca_common.alarms.expression import parse
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Record
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.tests.functional.pipeline.test_evaluate import DAY_MS, MINUTE_MS, EvaluateCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.reference import Measurement
from monasca_common.tests.unit.alarms.test_evaluation import in_order_of_history
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS, envelope

DELAY_MS = 30_000
STEP_MS = 30_000


class TimelineCase(EvaluateCase):
    """The timeline starts at ``base_ms``, more than a day before Kafka's time, because Kafka refuses times that are
    far ahead."""

    def setUp(self):
        super().setUp()
        self.base_ms = self.created_ms = (self.created_ms // HOUR_MS - 30) * HOUR_MS
        self.clock.now_ms = self.base_ms
        self.expressions, self.measured = {}, {}

    def define_each(self, **texts):
        for name, text in texts.items():
            self.define(text, "hostname", name=name)
            self.expressions[name] = parse(text)

    def begin(self, **changes):
        return self.evaluation(**{"delay_seconds": DELAY_MS // 1000, "outage_grace_seconds": 300} | changes)

    def come(self, second, value, host, *, metric="cpu", kafka_second=None, partition=None):
        """Send a measurement of this second after the start. Its timestamp in Kafka is the same, or
        ``kafka_second``."""
        meta = {"tenantId": "t", "region": "r"}
        text = envelope(metric, self.base_ms + second * 1000, value, dimensions={"hostname": host}, meta=meta)
        came_ms = self.base_ms + (second if kafka_second is None else kafka_second) * 1000
        partition = sum(host.encode()) % self.partitions if partition is None else partition
        self.publish([Record(text, partition=partition, timestamp_ms=came_ms)])
        for name, expression in self.expressions.items():
            if metric in {sub.metric_name for sub in expression.sub_expressions}:
                self.measured.setdefault((name, host), []).append(Measurement(second * 1000, value, 0))

    def go_on(self, job, minute):
        """Run steps until this number of minutes after the start."""
        while self.clock.now_ms < self.base_ms + minute * MINUTE_MS:
            self.clock.now_ms += STEP_MS
            job.step()

    def changes_of(self, name, host):
        return [(each.new, each.timestamp_ms - self.base_ms) for each in self.state_changes().get((name, host), [])]

    def assert_as_the_reference_says(self, end_minute):
        expected = {}
        for (name, host), measured in self.measured.items():
            batches = [(sorted(measured), end_minute * MINUTE_MS)]
            changes = in_order_of_history(reference.changes(self.expressions[name], batches, DELAY_MS))
            if changes:
                expected[name, host] = [
                    each._replace(timestamp_ms=self.base_ms + each.timestamp_ms) for each in changes
                ]
        self.assertEqual(expected, self.state_changes())
        self.assertEqual([0], self.scalars("SELECT count(*) FROM alarm_outbox"))


class SilenceTest(TimelineCase):
    @periodic("test_watermark advances the same clocks")
    def test_alarms_change_like_the_reference_during_ten_minutes_without_traffic(self):
        self.define_each(
            one="avg(cpu) > 5", six="avg(mem) > 5 times 6", quiet="sum(cpu, deterministic) > 5", newest="last(cpu) > 5"
        )
        job = self.begin()
        for second in (10, 70, 130):
            self.come(second, 9.0, "a")
            self.come(second, 1.0, "a", metric="mem")
            self.go_on(job, (second + 50) // 60)
        self.go_on(job, 14)
        self.assert_as_the_reference_says(14)
        # `six` would be UNDETERMINED in minute 20, after twelve evaluations without a measurement in any of its six
        # windows. `newest` keeps its state, because `last` needs no further measurements.
        self.assertEqual([("OK", 90_000)], self.changes_of("six", "a"))
        self.assertEqual([("ALARM", 10_000)], self.changes_of("newest", "a"))
        self.assertEqual([("ALARM", 90_000), ("UNDETERMINED", 330_000)], self.changes_of("one", "a"))


class OutageTest(TimelineCase):
    def outage(self):
        """Stop the broker for ten minutes; afterwards agents send their stored metrics again, the newest first."""
        self.define_each(low="avg(cpu) > 5", high="sum(cpu, deterministic) > 5", both="avg(cpu) > 5 times 2")
        job = self.begin()
        for minute in range(3):
            self.come_all(minute, minute)
            self.go_on(job, minute + 1)
        with mock.patch.object(SourceTopic, "extents", side_effect=TransportError("no broker answers")):
            for _ in range(3):
                self.clock.now_ms += 200_000
                self.assertRaises(TransportError, job.step)
        job.step()
        for minute in range(13, 21):
            self.come_all(minute, minute)
            for missed in {13: range(12, 7, -1), 14: range(7, 2, -1)}.get(minute, ()):
                self.come_all(missed, minute)
            self.go_on(job, minute + 1)
        return {key: [each.new for each in changes] for key, changes in self.state_changes().items()}

    def come_all(self, minute, kafka_minute):
        for host, value in (("a", 1.0), ("b", 9.0)):
            self.come(minute * 60 + 20, value, host, kafka_second=kafka_minute * 60 + 20)

    # Rule 44
    def test_a_broker_that_was_unavailable_for_ten_minutes_changes_no_state(self):
        low = {(name, "a"): ["OK"] for name in ("low", "both")}
        high = {(name, "b"): ["ALARM"] for name in ("low", "both", "high")}
        self.assertEqual(low | high, self.outage())

    # Rule 44
    def test_mutant_that_treats_an_outage_as_silence_changes_states(self):
        with mock.patch.object(watermark, "LONGEST_SILENCE_MS", 2**52):
            reported = self.outage()
        self.assertIn("UNDETERMINED", reported["low", "a"])
        self.assertIn("OK", reported["high", "b"])


@periodic("test_watermark advances the same clocks")
class FastClockTest(TimelineCase):
    def test_a_host_whose_clock_is_a_day_ahead_does_not_affect_others(self):
        self.define_each(one="avg(cpu) > 5", at_once="max(cpu) > 5")
        job = self.begin()
        day = DAY_MS // 1000
        for minute in range(8):
            self.come(minute * 60 + 10, 9.0 if minute in (2, 5) else 1.0, "a")
            self.come(minute * 60 + 10 + day, 9.0, "ahead", partition=minute % 2)
            # These times are not far enough ahead to be refused: the measurements are evaluated when their time comes.
            self.come(minute * 60 + 10 + 480, 9.0, "nine", kafka_second=minute * 60 + 10)
            self.go_on(job, minute + 1)
            told_ms = [
                each.timestamp_ms
                for (_, host), changes in self.state_changes().items()
                for each in changes
                if host == "a"
            ]
            self.assertLessEqual(max(told_ms, default=0), self.clock.now_ms)
        self.go_on(job, 20)
        self.measured = {key: found for key, found in self.measured.items() if key[1] != "ahead"}
        self.assert_as_the_reference_says(20)
        self.assertEqual(8, len(self.read(self.dlq, 1)))


class PauseTest(TimelineCase):
    """An immediate change is decided as soon as it is read. If one partition is read further than another,
    transitions that were due before it are not published. With one partition, all transitions are published."""

    partitions = 1
    texts = MappingProxyType(
        {
            "one": "avg(cpu) > 5",
            "three": "avg(cpu) > 5 times 3",
            "newest": "last(cpu) > 5",
            "at_once": "max(cpu) > 8",
            "some": "count(cpu) >= 1",
        }
    )

    def test_a_backlog_of_two_hours_is_evaluated_window_by_window_even_if_kafka_has_lost_the_group(self):
        self.define_each(**self.texts)
        job = self.begin(max_offsets_per_trigger=100)
        for minute in range(121):
            for number, host in enumerate(("h0", "h1", "h2", "h3")):
                # Each host is silent, low and high in turn, at different times.
                phase = (minute + 7 * number) // 5 % 3
                if phase:
                    self.come(minute * 60 + 5 + number, (1.0, 9.0)[phase - 1], host)
            if minute in (0, 1):
                self.go_on(job, minute + 1)
        self.clock.now_ms = self.base_ms + 122 * MINUTE_MS
        self.assertGreater(job.step().left, 0)
        self.lose_group()
        job = self.begin(max_offsets_per_trigger=100)
        while job.step().left:
            pass
        self.assert_as_the_reference_says(122)

    def lose_group(self):
        admin = confluent_kafka.admin.AdminClient(self.cluster.direct_options())
        admin.delete_consumer_groups([self.group])[self.group].result(60)


@periodic("PauseTest runs the same test with one partition")
class TwoPartitionsPauseTest(PauseTest):
    partitions = 2
    texts = MappingProxyType({name: PauseTest.texts[name] for name in ("one", "three", "newest")})


class WindowBoundaryTest(TimelineCase):
    def test_an_immediate_alarm_does_not_flap_at_the_border_of_a_window(self):
        self.define_each(at_once="max(cpu) > 1")
        job = self.begin()
        # The window before the alarm has no value above the threshold, and is due half a minute after the alarm.
        for second, value in ((10, 0.0), (65, 2.0), (130, 0.0)):
            self.clock.now_ms = self.base_ms + second * 1000
            self.come(second, value, "a")
            job.step()
        self.go_on(job, 4)
        self.assertEqual([("ALARM", 65_000), ("OK", 210_000)], self.changes_of("at_once", "a"))
