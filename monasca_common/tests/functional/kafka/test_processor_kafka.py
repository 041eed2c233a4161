# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fixtures

from monasca_common.kafka import failpoints, plugins
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import (
    HandlerError,
    MessageTooLarge,
    OffsetOutOfRange,
    Poison,
    RetryLater,
    TransactionError,
)
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record, TopicPartition
from monasca_common.kafka.processor.dead_letters import DeadLetters
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.processor.publishing import TransactionalPublisher
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.contracts.scenario import Recorder
from monasca_common.tests.functional.kafka import processor_program
from monasca_common.tests.functional.kafka.consumer_case import CLASSIC, KIP_848, ConsumerCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.periodic import periodic

SECONDS = 90
POLL_SECONDS = 5.0
MESSAGES = 200
BAD = {b"bad%d" % number for number in range(3, MESSAGES, 25)}
GOOD = {b"%d" % number for number in range(MESSAGES) if b"bad%d" % number not in BAD}


class ProcessorCase(ConsumerCase):
    cluster_settings: ClassVar[dict[str, Any]] = {}

    def log(self, topic):
        """Return (id, value) of every committed record."""
        messages = read_topic(self.cluster, topic)
        return [(dict(each.headers() or ()).get(MESSAGE_ID_HEADER), each.value()) for each in messages]

    def committed(self, topic):
        offsets = self.admin.group_offsets(self.group)
        return sum(offset for partition, offset in offsets.items() if partition.topic == topic)


class TestMembership(ProcessorCase):
    """A group whose members must poll every 5 s, and handlers that take 8 s."""

    def run_processor(self, handler, **protocol):
        topic = self.fixture.topic()
        self.put(topic, 3)
        listener = Recorder()
        changes = {"max_poll_interval_seconds": POLL_SECONDS, **protocol}
        if "session_timeout_seconds" in changes:
            changes["session_timeout_seconds"] = POLL_SECONDS
        consumer = self.consumer(topic, listener=listener, **changes)
        processor = Processor(consumer, handler)
        thread = threading.Thread(target=processor.run, daemon=True)
        thread.start()
        self.addCleanup(thread.join, SECONDS)
        self.addCleanup(processor.stop, 5)
        self.wait_until(lambda: self.committed(topic) == 3)
        self.assertEqual(["assigned"], [event for event, _ in listener.events])

    def handle_slowly(self, **protocol):
        calls = []

        def handler(part):
            calls.append(part.offsets)
            time.sleep(POLL_SECONDS + 3)

        self.run_processor(handler, **protocol)
        self.assertEqual([0, 1, 2], [offset for offsets in calls for offset in offsets])

    @periodic("a dependency that is unavailable for longer than the interval is the stronger test")
    def test_a_handler_slower_than_max_poll_interval_stays_in_a_classic_group(self):
        self.handle_slowly(**CLASSIC)

    @periodic("second protocol; the normal run tests the classic protocol")
    def test_a_handler_slower_than_max_poll_interval_stays_in_a_kip_848_group(self):
        self.handle_slowly(**KIP_848)

    # Rule 17
    def test_a_dependency_unavailable_for_longer_than_max_poll_interval_costs_only_time(self):
        back = time.monotonic() + POLL_SECONDS + 3
        taken = []

        def handler(part):
            if time.monotonic() < back:
                raise RetryLater
            taken.extend(part.values)

        self.run_processor(handler, **CLASSIC)
        self.assertEqual([b"0", b"1", b"2"], taken)


class TestTransactions(ProcessorCase):
    def run_processor(self, handler, count, **choices):
        """Handle ``count`` messages, with outputs in ``self.out`` and dead letters in ``self.dlq``."""
        topic, self.out = self.fixture.topic(), self.fixture.topic()
        self.dlq = f"{topic}.dlq"
        self.cluster.create_topic(self.dlq, 1)
        self.put(topic, count)
        connection = self.settings(topic).connection
        producer = plugins.kafka_producer(ProducerSettings(connection, transactional_id=self.group))
        self.addCleanup(producer.close, 1)
        consumer = self.consumer(topic, batch_size=5)
        processor = Processor(
            consumer, handler, producer=producer, transactional=True, dead_letters=DeadLetters(), **choices
        )
        thread = threading.Thread(target=processor.run, daemon=True)
        thread.start()
        self.addCleanup(thread.join, SECONDS)
        self.addCleanup(processor.stop, 5)
        # A transaction's control records use offsets in its output topics, and none in the input.
        self.wait_until(lambda: self.committed(topic) == count)

    def double(self, part):
        return [(self.out, value * 2) for value in part.values]

    def test_dead_letters_outputs_and_offsets_are_committed_together(self):
        def handler(part):
            bad = [index for index, value in enumerate(part.values) if value in (b"3", b"11")]
            if bad:
                raise Poison("bad", bad)
            return self.double(part)

        self.run_processor(handler, 20)
        good = sorted(b"%d" % number * 2 for number in range(20) if number not in (3, 11))
        with each_once():
            self.assertEqual(good, sorted(value for _, value in self.log(self.out)))
        self.assertEqual([b"3", b"11"], [value for _, value in self.log(self.dlq)])

    # Rule 20
    def test_an_aborted_transaction_is_read_and_handled_again_and_seen_once(self):
        publish, calls = TransactionalPublisher._publish, []

        def aborts_sometimes(outbox, topic, records):
            publish(outbox, topic, records)
            calls.append(topic)
            if len(calls) in (2, 4):
                raise TransactionError("for the test")

        self.useFixture(
            fixtures.MonkeyPatch(
                f"{TransactionalPublisher.__module__}.TransactionalPublisher._publish", aborts_sometimes
            )
        )
        self.run_processor(self.double, 30)
        with each_once():
            self.assertEqual(
                sorted(b"%d" % number * 2 for number in range(30)), sorted(v for _, v in self.log(self.out))
            )

    def test_an_output_that_is_too_large_ends_the_run_and_no_part_is_visible(self):
        topic, out = self.fixture.topic(), self.fixture.topic()
        self.put(topic, 1)
        connection = self.settings(topic).connection
        with plugins.kafka_producer(ProducerSettings(connection, transactional_id=self.group)) as producer:
            processor = Processor(
                self.consumer(topic),
                lambda part: [(out, b"small"), (out, b"x" * 5_000_000)],
                producer=producer,
                transactional=True,
            )
            error = self.assertRaises(HandlerError, processor.run)
        self.assertIsInstance(error.__cause__, MessageTooLarge)
        self.assertEqual([], self.log(out))
        self.assertEqual(0, self.committed(topic))


class CrashCase(ProcessorCase):
    bad: ClassVar[set[bytes]] = BAD
    driver = "kafka"
    transactional_id: str | None = None

    def setUp(self):
        super().setUp()
        self.topic, self.out = self.fixture.topic(2), self.fixture.topic()
        self.cluster.create_topic(f"{self.topic}.dlq", 1)
        connection = self.settings(self.topic).connection
        self.servers = connection.bootstrap_servers
        with plugins.kafka_producer(ProducerSettings(connection)) as producer:
            names = [b"bad%d" % number for number in range(MESSAGES)]
            values = [bad if bad in self.bad else bad.removeprefix(b"bad") for bad in names]
            records = [Record(value, partition=number % 2) for number, value in enumerate(values)]
            producer.publish(self.topic, records, timeout=SECONDS).raise_for_undelivered()

    def spawn(self, *, fail_points="", mutant=None, pace_seconds=0.0):
        facts = {
            "servers": self.servers,
            "driver": self.driver,
            "topic": self.topic,
            "out": self.out,
            "group": self.group,
            "mutant": mutant,
            "pace_seconds": pace_seconds,
            "transactional_id": self.transactional_id and f"{self.transactional_id}-{self.group}",
        }
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        error_text = folder / f"stderr of {folder.name}"
        command = [sys.executable, "-m", processor_program.__name__, json.dumps(facts)]
        environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: fail_points}
        process = start_process(self, command, error_text, env=environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.assertEqual("ready\n", process.stdout.readline())
        return process

    def crash(self, point, *, mutant=None, pace_seconds=0.001, meanwhile=None):
        """Run until the fail point kills the process, then run to the end of the log."""
        process = self.spawn(fail_points=point, mutant=mutant, pace_seconds=pace_seconds)
        if meanwhile is not None:
            meanwhile()
        self.assertEqual(-signal.SIGKILL, process.wait(SECONDS))
        process = self.spawn(mutant=mutant)
        self.wait_until(lambda: self.committed(self.topic) == MESSAGES)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))

    def found(self):
        """Return lost or duplicated values for a reader that reads each message id once; empty if there are none."""
        problems: list[tuple[str, object]] = []
        for name, expected in ((self.out, {value * 2 for value in GOOD}), (f"{self.topic}.dlq", BAD)):
            by_id = dict(self.log(name))
            problems += [("lost", value) for value in expected - set(by_id.values())]
            if len(by_id) > len(expected):
                problems.append(("doubled", len(by_id) - len(expected)))
        return problems


class TestCrash(CrashCase):
    """SIGKILL at each fail point and a restart: no message is lost, and every repeated message has the same id. While a
    partition is revoked, the handler is slow enough that work remains, however long the new member takes.
    """

    def take_partition_away(self):
        """Let a second member join once the first has begun, and leave without a commit."""
        self.wait_until(lambda: self.committed(self.topic) > 0)
        other = self.consumer(self.topic, session_timeout_seconds=2.0, assignment_strategy=None)
        self.poll_until(other, other.assignment)
        other.close(1)

    def test_a_crash_after_a_poll_loses_no_message(self):
        self.crash("processor.after_poll=kill@4")
        with each_once():
            self.assertEqual([], self.found())

    # Rule 13
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_commits_polled_messages_fails_after_a_crash(self):
        # Ten polls return all messages; later polls take 0.2 s each, and there is one commit per second.
        self.crash("processor.after_poll=kill@20", mutant="commits_what_it_polled", pace_seconds=0.5)
        self.assertNotEqual([], self.found())

    def test_a_crash_before_outputs_are_acknowledged_loses_no_message(self):
        self.crash("processor.after_handle=kill@3")
        with each_once():
            self.assertEqual([], self.found())

    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_commits_before_its_outputs_fails_after_a_crash(self):
        self.crash("processor.after_handle=kill@3", mutant="commits_before_outputs_are_acknowledged")
        self.assertNotEqual([], self.found())

    def test_a_crash_between_a_dead_letter_and_its_commit_loses_no_message(self):
        self.crash("processor.after_dead_letter=kill@3")
        with each_once():
            self.assertEqual([], self.found())

    # Rule 17
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_gives_dead_letters_new_ids_fails_after_a_crash(self):
        self.crash("processor.after_dead_letter=kill@3", mutant="gives_dead_letters_new_ids")
        self.assertNotEqual([], self.found())

    def test_a_crash_before_a_commit_loses_no_message(self):
        self.crash("processor.before_commit=kill@1")
        with each_once():
            self.assertEqual([], self.found())

    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_gives_outputs_new_ids_fails_after_a_crash(self):
        self.crash("processor.before_commit=kill@1", mutant="gives_outputs_new_ids")
        self.assertNotEqual([], self.found())

    def test_a_crash_during_a_revoke_loses_no_message(self):
        self.crash("processor.during_revoke=kill", pace_seconds=0.5, meanwhile=self.take_partition_away)
        with each_once():
            self.assertEqual([], self.found())

    # Rule 14
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_commits_unfinished_messages_on_a_revoke_fails_after_a_crash(self):
        self.crash(
            "processor.during_revoke=kill",
            mutant="commits_everything_on_revoke",
            pace_seconds=0.5,
            meanwhile=self.take_partition_away,
        )
        self.assertNotEqual([], self.found())


@periodic("like TestCrash, with the driver confluent")
class TestCrashOnConfluent(CrashCase):
    driver = "confluent"
    take_partition_away = TestCrash.take_partition_away
    test_after_a_poll = TestCrash.test_a_crash_after_a_poll_loses_no_message
    test_before_outputs = TestCrash.test_a_crash_before_outputs_are_acknowledged_loses_no_message
    test_after_a_dead_letter = TestCrash.test_a_crash_between_a_dead_letter_and_its_commit_loses_no_message
    test_before_a_commit = TestCrash.test_a_crash_before_a_commit_loses_no_message
    test_during_a_revoke = TestCrash.test_a_crash_during_a_revoke_loses_no_message


class TestCrashInTransaction(CrashCase):
    """With outputs and offsets in one transaction, the log itself has every output once, regardless of its id."""

    bad: ClassVar[set[bytes]] = set()
    transactional_id = "crash"

    def outputs(self):
        return sorted(value for _, value in self.log(self.out))

    def test_a_crash_before_the_commit_of_a_transaction_loses_no_message(self):
        self.crash("processor.in_transaction=kill@4")
        with each_once():
            self.assertEqual(sorted(b"%d" % number * 2 for number in range(MESSAGES)), self.outputs())

    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_sends_outputs_outside_of_the_transaction_fails(self):
        self.crash("processor.in_transaction=kill@4", mutant="sends_outputs_outside_of_the_transaction")
        self.assertGreater(len(self.outputs()), MESSAGES)


class TestEndOfTheLog(ProcessorCase):
    """Positions move past records that are not messages, but not past open transactions."""

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()
        self.upstream = self.transactional_producer()
        self.handled = []

    def transactional_producer(self):
        servers = self.cluster.client_options("admin")["bootstrap.servers"]
        settings = ProducerSettings(ConnectionSettings(servers), transactional_id=f"upstream-{uuid.uuid4().hex[:12]}")
        producer = plugins.kafka_producer(settings)
        self.addCleanup(producer.close, 5)
        return producer

    def put_in_a_transaction(self, *values):
        with self.upstream.transaction() as transaction:
            for value in values:
                transaction.send(self.topic, value)

    def begin(self, **choices):
        self.reader = self.consumer(self.topic)
        self.processor = Processor(self.reader, lambda part: self.handled.extend(part.values), **choices)
        self.failures = []
        self.thread = threading.Thread(target=self.run_until_it_ends, daemon=True)
        self.thread.start()
        self.addCleanup(self.thread.join, SECONDS)
        self.addCleanup(self.processor.stop, 5)

    def run_until_it_ends(self):
        try:
            self.processor.run()
        except Exception as error:
            self.failures.append(error)

    def end(self):
        self.processor.stop(5)
        self.thread.join(SECONDS)
        self.reader.close(5)

    def log_end(self):
        partition = TopicPartition(self.topic, 0)
        return self.admin.end_offsets([partition])[partition]

    def retention_empties_the_log(self):
        self.admin.delete_records({TopicPartition(self.topic, 0): self.log_end()})

    # Rule 17
    @periodic("the other tests of this class read to the end of such logs")
    def test_reading_resumes_without_loss_or_lag_after_retention_emptied_a_transactional_topic(self):
        self.put_in_a_transaction(b"1", b"2")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 3)  # two messages and the marker of their transaction
        self.end()
        self.retention_empties_the_log()
        self.begin()
        self.wait_until(lambda: self.reader.lag() == {TopicPartition(self.topic, 0): 0})
        self.put_in_a_transaction(b"3")
        # The log can have the same end until the marker of the transaction is written.
        self.wait_until(lambda: b"3" in self.handled)
        self.wait_until(lambda: self.committed(self.topic) == self.log_end())
        self.end()
        with each_once():
            self.assertEqual(([b"1", b"2", b"3"], []), (self.handled, self.failures))

    # Rule 17
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_stops_after_the_last_message_cannot_continue(self):
        self.useFixture(fixtures.MockPatchObject(KafkaConsumer, "take_ends", lambda consumer: {}))
        self.put_in_a_transaction(b"1", b"2")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 2)
        self.end()
        self.retention_empties_the_log()
        self.begin()
        self.wait_until(lambda: self.failures)
        self.assertIsInstance(self.failures[0], OffsetOutOfRange)

    # Rule 17
    def test_the_position_stops_before_an_open_transaction_and_passes_an_aborted_one(self):
        self.put_in_a_transaction(b"1")
        self.begin()
        self.wait_until(lambda: self.committed(self.topic) == 2)
        try:
            with self.upstream.transaction() as transaction:
                transaction.send(self.topic, b"aborted")
                self.upstream.flush(SECONDS).raise_for_undelivered()
                threading.Event().wait(2)  # a wrong position would be committed after one second
                self.assertEqual(2, self.committed(self.topic))
                raise InterruptedError
        except InterruptedError:
            pass
        self.wait_until(lambda: self.committed(self.topic) == 4)
        self.end()
        self.assertEqual(([b"1"], []), (self.handled, self.failures))

    @periodic("uses the mechanism that the preceding tests cover")
    def test_a_transactional_processor_moves_to_the_end_in_a_transaction(self):
        self.put_in_a_transaction(b"1", b"2")
        self.begin(producer=self.transactional_producer(), transactional=True)
        self.wait_until(lambda: self.committed(self.topic) == 3)
        self.end()
        self.assertEqual([], self.failures)

    @periodic("uses the mechanism that the preceding tests cover")
    def test_the_position_of_a_database_moves_to_the_end_before_kafkas_commit(self):
        claims = []

        def accounted(partition, start, end):
            claims.append((start, end, self.committed(self.topic)))

        self.put_in_a_transaction(b"1", b"2")
        self.begin(accounted=accounted)
        self.wait_until(lambda: self.committed(self.topic) == 3)
        self.end()
        ((start, end, committed),) = claims
        self.assertEqual((2, 3), (start, end))
        self.assertLess(committed, 3)
