# SPDX-License-Identifier: Apache-2.0
"""The lag service: its surveys, the records that it stores, and its log lines."""

from dataclasses import replace

import fixtures
from oslotest import base
from prometheus_client import generate_latest

from monasca_common.kafka.errors import ConfigurationError, RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.operations.lag import metrics
from monasca_common.operations.lag import service as lag_service
from monasca_common.operations.lag.history import LagHistory, history_of
from monasca_common.operations.lag.service import LagService
from monasca_common.operations.lag.verdict import Commit, LagStatus, PartitionState
from monasca_common.operations.settings import LagSettings, lag_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

TP = TopicPartition("metrics", 0)
CONNECTION = ConnectionSettings("kafka:9092")


class FakeSurvey:
    """``states``: the states by group and partition. ``failure``: the error that `scan` raises."""

    def __init__(self):
        self.states, self.failure, self.histories = {}, None, []

    def groups(self):
        return sorted(self.states)

    def scan(self, groups, now_ms, *, history):
        self.histories.append(history)
        if self.failure is not None:
            raise self.failure
        return {group: self.states[group] for group in groups}


class LagServiceTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("monasca-lag", 1)
        self.clock = VirtualClock()
        self.producer = self.kafka.producer()
        self.surveyed = FakeSurvey()
        self.useFixture(fixtures.MonkeyPatch(f"{lag_service.__name__}.LagSurvey", lambda *_, **__: self.surveyed))
        self.useFixture(fixtures.MonkeyPatch(f"{lag_service.__name__}.read_history", lambda *_, **__: self.kept()))

    def kept(self):
        messages = self.kafka.broker.records("monasca-lag")
        return history_of((message.key, message.value) for message in messages)

    def service(self, **settings):
        made = LagSettings(CONNECTION, ProducerSettings(CONNECTION), **settings)
        return LagService(made, None, clock=self.clock)

    def stopped(self):
        """A group that has committed nothing for two minutes."""
        now_ms = self.clock.time_ms()
        return {TP: PartitionState(0, 9, (Commit(now_ms - 120_000, 5, 9),), now_ms - 120_000)}

    def test_results_are_in_the_metrics_and_in_the_topic(self):
        self.surveyed.states = {"g": self.stopped()}
        service = self.service()
        service.survey(self.producer)
        text = generate_latest(service.metrics.registry).decode()
        self.assertIn('monasca_lag_messages{group="g",partition="0",topic="metrics"} 4.0', text)
        self.assertIn('monasca_lag_group_status{group="g",status="STOP"} 1.0', text)
        self.assertEqual(LagStatus.STOP, self.kept().of("g", TP).lag.status)

    def test_the_log_has_a_group_that_keeps_up_but_loses_messages(self):
        log = self.useFixture(fixtures.FakeLogger(lag_service.__name__))
        now_ms = self.clock.time_ms()
        well = PartitionState(0, 9, (Commit(now_ms - 1000, 5, 9),), now_ms - 1000)
        service = self.service()
        for first in (0, 7, 8):
            self.surveyed.states = {"g": {TP: replace(well, first=first)}}
            service.survey(self.producer)
        self.assertEqual(1, log.output.count("group g is OK"))
        self.assertIn("2 unread, 2 deleted unread", log.output)

    def test_a_restart_continues_from_the_topic(self):
        self.surveyed.states = {"g": self.stopped()}
        found = self.service().survey(self.producer)
        self.service().survey(self.producer)
        self.assertEqual([LagHistory(), found], self.surveyed.histories)

    def test_only_groups_that_match_a_pattern_are_surveyed(self):
        self.surveyed.states = {"spark-a": {}, "spark-b": {}, "other": {}}
        found = self.service(groups=("spark-*",)).survey(self.producer)
        self.assertEqual({"spark-a", "spark-b"}, set(found.groups))

    def test_a_failed_survey_is_reported_until_the_next_one_succeeds(self):
        service = self.service()
        self.surveyed.failure = RetriableError("no response")
        self.run_once(service)
        self.assertEqual((False, ["no response"]), (service.health.ready()[0], service.health.ready()[1]["reasons"]))
        self.assertIn('surveys_total{outcome="failed"} 1.0', generate_latest(service.metrics.registry).decode())
        self.surveyed.failure = None
        service.survey(self.kafka.producer())
        self.assertTrue(service.health.ready()[0])

    def run_once(self, service):
        self.useFixture(fixtures.MonkeyPatch(f"{lag_service.__name__}.open_producer", lambda _: self.producer))
        failed = service.failed

        def fail_and_stop(error):
            failed(error)
            service.stop()

        service.failed = fail_and_stop
        service.run()

    def test_the_service_is_live_while_it_loops_and_ready_while_its_surveys_are_fresh(self):
        service = self.service()
        service.survey(self.producer)
        self.clock.advance(609)
        self.assertEqual((True, False), (service.health.live()[0], service.health.ready()[0]))
        self.assertIn("609 s ago", service.health.health()[1]["reasons"][0])
        self.clock.advance(2)
        self.assertFalse(service.health.live()[0])

    def test_a_service_that_waits_for_its_next_survey_is_live(self):
        service = self.service(interval_seconds=3600.0)
        service.survey(self.producer)
        self.clock.advance(3600)
        self.assertEqual((True, True), (service.health.live()[0], service.health.ready()[0]))

    def test_without_its_topic_the_error_names_the_command_that_creates_it(self):
        self.useFixture(fixtures.MonkeyPatch(f"{lag_service.__name__}.read_history", lambda *_, **__: None))
        error = self.assertRaises(ConfigurationError, self.service().survey, self.producer)
        self.assertIn("monasca-common init", str(error))

    def test_only_the_worst_partitions_have_metrics_but_all_count_for_the_group(self):
        quiet = {TopicPartition("metrics", number): PartitionState(0, 9, (), None) for number in (1, 2)}
        self.surveyed.states = {"g": {**quiet, **self.stopped()}}
        self.useFixture(fixtures.MonkeyPatch(f"{metrics.__name__}._MAX_PARTITIONS", 1))
        service = self.service()
        service.survey(self.producer)
        lines = generate_latest(service.metrics.registry).decode().splitlines()
        reported = [line for line in lines if line.startswith("monasca_lag_messages{")]
        self.assertEqual(['monasca_lag_messages{group="g",partition="0",topic="metrics"} 4.0'], reported)
        self.assertIn("monasca_lag_left_out_partitions 2.0", lines)


class OptionsTest(ConfigurationTestCase):
    def test_groups_are_watched_by_name_or_pattern(self):
        settings = lag_settings(self.with_kafka(lag="groups = a*,b\ninterval_seconds = 5"))
        self.assertEqual((True, False), (settings.watches("alpha"), settings.watches("beta")))
