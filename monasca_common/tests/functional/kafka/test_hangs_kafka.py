# SPDX-License-Identifier: Apache-2.0
"""Calls of a real client that exceed their time-outs: the caller returns, and no message is lost or duplicated. A
producer can continue with another client."""

import concurrent.futures
import json
import subprocess
import sys
import threading
import time
import uuid

import confluent_kafka
import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import CommitUnknown, FatalError, FencedError, RetriableError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.kafka.transport import client_thread
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.administration import allow, revoke
from monasca_common.tests.functional.kafka.producer_case import BUSY_SECONDS, SECONDS, ProducerCase, doubled
from monasca_common.tests.functional.kafka.test_security import SecurityCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

TIMEOUT = 3.0
MESSAGES = 300
EXITS = 20
EXIT_STATUS = 3
EXIT_SECONDS = 5.0 + BUSY_SECONDS
CLOSE_SECONDS = 1.0 + BUSY_SECONDS


class HangCase(ProducerCase):
    def setUp(self):
        super().setUp()
        self.error_text = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))
        self.source, self.out = self.fixture.topic(), self.fixture.topic()
        name = uuid.uuid4().hex[:12]
        self.transactional_id, self.group = f"transactions-{name}", f"group-{name}"
        records = [Record(b"%d" % number) for number in range(MESSAGES)]
        self.producer().publish(self.source, records, timeout=SECONDS).raise_for_undelivered()

    def cut_off_the_coordinator(self):
        """Make the group's coordinator unknown: librdkafka repeats the request after every time-out."""
        wanted = self.group.encode()
        fault = Fault.cut_request(ApiKey.FIND_COORDINATOR, where=lambda request: wanted in request.frame)
        self.addCleanup(self.fixture.proxy.clear)
        return self.fixture.proxy.add(fault)

    def transactional(self):
        return self.producer(transactional_id=self.transactional_id, transaction_timeout_seconds=TIMEOUT)

    def reader(self):
        return self.consumer(self.source, group=self.group, stop_timeout_seconds=3.0, batch_size=20)

    def processor(self, on_batch=lambda: None):
        """Create a processor with new clients, which have the same group and transactional ids."""
        producer, consumer = self.transactional(), self.reader()

        def handler(part):
            on_batch()
            return [(self.out, value) for value in part.values]

        return Processor(consumer, handler, producer=producer, transactional=True), producer, consumer

    def in_time(self, call, seconds):
        begun = time.monotonic()
        result = call()
        self.assertLess(time.monotonic() - begun, seconds)
        return result

    def run_until_done(self, deadline):
        """Run one processor after the other, like the restart loop of a service; return their number."""
        runs = 0
        while self.committed() < MESSAGES:
            self.assertLess(time.monotonic(), deadline)
            runs += 1
            self.ended = False
            processor, producer, consumer = self.processor()
            watch = threading.Thread(target=self.stop_when_done, args=(processor, deadline), daemon=True)
            watch.start()
            try:
                processor.run()
            except (FatalError, FencedError):
                pass
            finally:
                self.ended = True
                watch.join(SECONDS)
                self.close(producer, consumer)
        return runs

    def close(self, *clients):
        for client in clients:
            self.in_time(lambda client=client: client.close(1), 1 + CLOSE_SECONDS)

    def stop_when_done(self, processor, deadline):
        while self.committed() < MESSAGES and time.monotonic() < deadline and not self.ended:
            time.sleep(0.2)
        processor.stop(3)

    def committed(self):
        return self.cluster.admin.group_offsets(self.group).get(TopicPartition(self.source, 0), 0)

    def seen(self):
        """Return the values that a reader of committed data gets, in log order."""
        self.producer().publish(self.out, [b"end"], timeout=SECONDS).raise_for_undelivered()
        return [int(value) for value in self.read(self.out).values() if value != b"end"]


class TestTransactionsThatHang(HangCase):
    def hang_in_the_offsets(self):
        """Run a processor whose first transaction hangs while it sends offsets; return the error that ended it."""
        processor, producer, consumer = self.processor(on_batch=self.cut_off_the_coordinator)
        error = self.in_time(lambda: self.assertRaises(FatalError, processor.run), 30 + BUSY_SECONDS)
        self.assertTrue(producer.health().poisoned)
        return error, producer, consumer

    # Rule 20
    def test_a_hanging_processor_ends_and_its_successor_handles_everything_once(self):
        error, producer, consumer = self.hang_in_the_offsets()
        self.assertIn("send_offsets_to_transaction has not returned", str(error))
        self.close(producer, consumer)
        self.fixture.proxy.clear()
        self.run_until_done(time.monotonic() + 2 * SECONDS)
        with each_once():
            self.assertEqual(list(range(MESSAGES)), self.seen())

    def test_a_call_that_returns_late_has_no_effect_and_its_client_is_destroyed(self):
        _, producer, _ = self.hang_in_the_offsets()
        self.fixture.proxy.clear()
        self.wait_until(lambda: "send_offsets_to_transaction has returned" in self.error_text.output)
        self.assertRaises(FatalError, producer.transaction().__enter__)
        (bounded,) = producer._clients.in_use()
        self.wait_until(lambda: bounded.thread._thread not in threading.enumerate())
        self.assertEqual(0, self.committed())

    # Rule 20
    @periodic("repeats faults that test_lost_answers injects singly")
    def test_repeatedly_cut_connections_neither_lose_nor_duplicate_messages(self):
        flaps = threading.Event()

        def flap():
            for _ in range(5):
                end = time.monotonic() + 0.2
                while time.monotonic() < end:
                    self.fixture.proxy.cut_connections()
                    time.sleep(0.01)
                if flaps.wait(2.0):
                    return

        flapping = threading.Thread(target=flap, daemon=True)
        flapping.start()
        self.addCleanup(flapping.join)
        self.addCleanup(flaps.set)
        self.run_until_done(time.monotonic() + 3 * SECONDS)
        flaps.set()  # the client that reads the result keeps its connections
        flapping.join()
        with each_once():
            self.assertEqual(list(range(MESSAGES)), self.seen())


class TestCommitsThatHang(HangCase):
    def test_a_commit_without_a_response_delays_neither_the_poll_nor_the_close(self):
        consumer = self.reader()
        self.wait_until(lambda: consumer.poll(timeout=0.1).partitions)
        self.fixture.proxy.add(Fault.hold_answer(ApiKey.OFFSET_COMMIT))
        self.addCleanup(self.fixture.proxy.clear)
        partition = TopicPartition(self.source, 0)
        self.assertIsInstance(consumer.commit({partition: 1}, 0.5)[partition].error, CommitUnknown)
        self.in_time(lambda: consumer.poll(timeout=0), BUSY_SECONDS)
        self.assertGreater(consumer.health().oldest_call_seconds, 0.4)
        self.close(consumer)


@periodic("waits for the time-outs of a whole process; the normal run contains TestCommitsThatHang")
class TestExit(HangCase):
    # Rule 20
    def test_a_process_whose_call_hangs_ends_in_time_with_its_own_status(self):
        self.cut_off_the_coordinator()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(self.end, range(EXITS)))
        self.assertEqual([(EXIT_STATUS, [])] * EXITS, [(status, error_text) for status, error_text, _ in ends])
        self.assertLess(max(seconds for _, _, seconds in ends), EXIT_SECONDS)

    def end(self, number):
        facts = {
            "servers": self.cluster.bootstrap_servers,
            "topic": self.out,
            "group": self.group,
            "transactional_id": f"{self.transactional_id}-{number}",
            "poisoned": number % 2 == 0,
            "closes": number % 4 < 2,
        }
        command = [sys.executable, "-m", __name__, json.dumps(facts)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            begun = time.monotonic()
            try:
                status = process.wait(2 * EXIT_SECONDS)
            finally:
                process.kill()
            seconds = time.monotonic() - begun
            error_text = process.stderr.read()
            return status, [word for word in ("Traceback", "Fatal", "terminate") if word in error_text], seconds


class TestReopenAfterFatalError(SecurityCase):
    # Rule 9
    def test_reports_can_be_retried_once_the_write_permission_is_granted_again(self):
        self.allow("describe")
        right = self.allow("write")
        before = self.producer(user="monasca")
        before.publish(self.topic, [b"before"], timeout=SECONDS).raise_for_undelivered()
        revoke(self.cluster.admin, right)
        # An open producer continues with other topics; the error is fatal for a producer that is opened now.
        self.wait_until(lambda: not before.publish(self.topic, [b"before"], timeout=SECONDS).ok)
        producer = self.producer(user="monasca")
        reports = []

        def finished():
            reports.append(producer.publish(self.topic, [b"%d" % len(reports)], timeout=1))
            return producer.health().finished

        self.wait_until(finished)
        self.assertFalse(reports[-1].retriable)
        self.assertFalse(producer.retry(reports[-1], timeout=SECONDS).ok)
        allow(self.cluster.admin, right)

        def delivered():  # a permission reaches a broker after a short delay
            if producer.health().finished:
                producer.reopen()
            reports[:] = [producer.retry(report, timeout=SECONDS) for report in reports]
            return all(report.ok for report in reports)

        self.wait_until(delivered)
        self.assertFalse(producer.health().finished)
        log = [record for record in self.log(self.topic) if record.value != b"before"]
        with each_once():
            self.assertEqual((len(reports), 0), (len(log), doubled(log)))


@periodic("waits for calls that hang; the normal run contains TestReopenAfterFatalError")
class TestReopenedTransactions(HangCase):
    def setUp(self):
        super().setUp()
        self.transactions = self.transactional()

    def move(self, reader):
        """Read the remaining messages of the source, and write them in transactions."""
        while self.committed() < MESSAGES:
            batch = reader.poll(timeout=0.2)
            if batch.partitions:
                with self.transactions.transaction() as transaction:
                    for message in batch:
                        transaction.send(self.out, message.value)
                    transaction.commit_offsets(reader, batch)

    # Rule 9
    def test_every_message_is_read_once_after_a_hanging_call(self):
        reader = self.reader()
        self.wait_until(lambda: reader.poll(max_messages=1, timeout=0.1).partitions)
        reader.seek_to_beginning()
        self.cut_off_the_coordinator()
        self.assertRaises(FatalError, self.move, reader)
        self.assertTrue(self.transactions.health().poisoned)
        self.fixture.proxy.clear()
        self.transactions.reopen()
        self.assertFalse(self.transactions.health().poisoned)
        reader.seek_to_committed()
        self.move(reader)
        with each_once():
            self.assertEqual(list(range(MESSAGES)), self.seen())


# the program of TestExit


class ReadOnce:
    """A consumer that has read one message of a partition."""

    def __init__(self, servers, group):
        self._client = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})

    def next_offsets(self, inputs):
        return inputs

    def group_metadata(self):
        return self._client.consumer_group_metadata()

    def seek_to_committed(self):
        raise AssertionError("nothing is read again")


def main(facts):
    """End while a call of the producer hangs; return the exit status.

    With ``poisoned`` the call has passed its deadline by then; otherwise its caller still waits.
    """
    client_thread.GRACE_SECONDS = 0.2
    producer = plugins.kafka_producer(
        ProducerSettings(
            ConnectionSettings(facts["servers"]),
            transactional_id=facts["transactional_id"],
            transaction_timeout_seconds=1.0 if facts["poisoned"] else 60.0,
        )
    )
    consumer = ReadOnce(facts["servers"], facts["group"])
    while True:
        try:
            producer.init_transactions(20.0)
            break
        except RetriableError:
            continue
    ended = []

    def transact():
        try:
            with producer.transaction() as transaction:
                transaction.commit_offsets(consumer, {TopicPartition(facts["topic"], 0): 1})
        except FatalError:
            ended.append(True)

    threading.Thread(target=transact, daemon=True).start()
    deadline = time.monotonic() + 120
    while not (ended if facts["poisoned"] else producer.health().oldest_call_seconds > 0.5):
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.05)
    print("ends", flush=True)  # noqa: T201
    if facts["closes"]:
        producer.close(1)
    return EXIT_STATUS


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
