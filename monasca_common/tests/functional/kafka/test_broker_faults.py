# SPDX-License-Identifier: Apache-2.0
"""Brokers that are killed, frozen, absent or full under load: no acknowledged message is lost or duplicated."""

import itertools
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from oslotest import base

from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.errors import DeliveryTimeout, TransportError
from monasca_common.kafka.message import Record
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.producer_case import BUSY_SECONDS, SECONDS, ProducerCase, doubled
from monasca_common.tests.functional.kafka.test_lost_answers import producer_options
from monasca_common.tests.kafka_cluster import KafkaClusterFixture, SharedKafkaCluster
from monasca_common.tests.kafka_proxy import Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import Waiting

PARTITIONS = 3
RECOVERY_SECONDS = 120
FOLLOWERS_FROZEN_SECONDS = 1.0
OUTAGE_SECONDS = 15.0
FROZEN_SECONDS = 20.0
CALLER_SECONDS = 2.0


class Load(threading.Thread):
    """Sends numbered records to every partition, some hundreds per second, until stopped; receives every outcome."""

    def __init__(self, producer, topic):
        super().__init__(daemon=True)
        self.deliveries = []
        self.sent = 0
        self._producer = producer
        self._topic = topic
        self._stopping = threading.Event()
        self.start()

    def run(self):
        for number in itertools.count():
            if self._stopping.wait(0.005):
                return
            for partition in range(PARTITIONS):
                record = Record(b"%d" % number, partition=partition)
                self._producer.send(self._topic, record, on_delivery=self.deliveries.append)
                self.sent += 1

    @property
    def acknowledged(self):
        return {delivery.message_id for delivery in list(self.deliveries) if delivery.error is None}

    def stop(self):
        self._stopping.set()
        self.join()


class FaultCase(ProducerCase):
    @each_once()
    def check_that_nothing_acknowledged_is_lost(self, acknowledged, log):
        self.assertEqual(0, len(acknowledged - {record.message_id for record in log}))

    @each_once()
    def check_that_nothing_is_doubled(self, log):
        self.assertEqual(0, doubled(log))

    def check_that_each_partition_is_in_order(self, log):
        for partition in range(PARTITIONS):
            numbers = [int(record.value) for record in log if record.partition == partition]
            self.assertEqual(sorted(numbers), numbers)


class ThreeNodesCase(FaultCase):
    nodes = 3
    cluster_settings = {}  # noqa: RUF012

    def setUp(self):
        super().setUp()
        self.cluster.admin.wait_for_brokers(3, SECONDS)
        self.topic = self.fixture.topic(PARTITIONS)
        self.wait_until(self.all_in_sync)

    def all_in_sync(self):
        try:
            return all(len(in_sync) == 3 for in_sync in self.describe().in_sync)
        except TransportError:
            return False  # the broker that received the request does not know the topic yet

    def led_by_another_than(self, leader):
        try:
            return self.describe().leaders[0] not in (leader, None)
        except TransportError:
            return False  # the killed broker was the controller, and the new controller is not known yet

    def describe(self):
        return self.cluster.admin.describe_topic(self.topic)

    def kill_the_leader(self, *, freeze_followers, alone=False):
        """Send SIGKILL to the leader of a partition under load; return the acknowledged messages and the final log.
        ``alone``: the leader acknowledges without waiting for its followers."""
        producer = self.producer()
        load = Load(producer, self.topic)
        self.addCleanup(load.stop)
        self.wait_until(lambda: len(load.acknowledged) > 100)
        leader = self.describe().leaders[0]
        followers = [node for node in self.cluster.nodes if node.id != leader]
        if freeze_followers:
            for node in followers:
                node.freeze()
            time.sleep(FOLLOWERS_FROZEN_SECONDS)  # the injected fault: the leader continues without followers
            if alone:
                behind = len(load.acknowledged)
                self.wait_until(lambda: len(load.acknowledged) > behind + 100)
        self.cluster.node(leader).kill()
        for node in followers:
            node.thaw()
        before = load.sent
        self.wait_until(lambda: len(load.acknowledged) > before)
        load.stop()
        self.assertTrue(producer.flush(RECOVERY_SECONDS).ok)
        self.wait_until(lambda: len(load.deliveries) == load.sent)
        self.wait_until(lambda: self.led_by_another_than(leader))
        return load.acknowledged, self.log(self.topic, PARTITIONS)

    def check_the_log(self, acknowledged, log):
        self.check_that_nothing_acknowledged_is_lost(acknowledged, log)
        self.check_that_nothing_is_doubled(log)
        self.check_that_each_partition_is_in_order(log)
        with each_once():
            self.assertEqual(len(acknowledged), len(log))


class TestThreeNodes(ThreeNodesCase):
    # Rule 11
    def test_killing_the_leader_under_load_loses_no_message(self):
        self.check_the_log(*self.kill_the_leader(freeze_followers=False))

    @periodic("long outage; the normal run kills the leader under load")
    def test_killing_the_leader_of_late_followers_loses_no_message(self):
        self.check_the_log(*self.kill_the_leader(freeze_followers=True))

    # Rule 11
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_with_acks_of_the_leader_only_loses_acknowledged_messages(self):
        with producer_options(acks=1, enable_idempotence=False):
            acknowledged, log = self.kill_the_leader(freeze_followers=True, alone=True)
        self.assertRaises(self.failureException, self.check_that_nothing_acknowledged_is_lost, acknowledged, log)

    # Rule 11
    @periodic("long outage; the normal run kills the leader under load")
    def test_an_outage_of_two_of_three_brokers_loses_no_message(self):
        producer = self.producer()
        load = Load(producer, self.topic)
        self.addCleanup(load.stop)
        self.wait_until(lambda: len(load.acknowledged) > 100)
        down = self.cluster.nodes[:2]
        for node in down:
            node.kill()
        # The injected fault.
        self.wait_until(lambda: producer.health().oldest_unacknowledged_seconds > OUTAGE_SECONDS)
        self.assertEqual([], [delivery for delivery in load.deliveries if delivery.error is not None])
        for node in down:
            node.start()
        before = load.sent
        self.wait_until(lambda: len(load.acknowledged) > before)
        load.stop()
        self.assertTrue(producer.flush(RECOVERY_SECONDS).ok)
        self.wait_until(lambda: len(load.deliveries) == load.sent)
        self.check_the_log(load.acknowledged, self.log(self.topic, PARTITIONS))

    # Rule 11
    @periodic("long outage; the normal run kills the leader under load")
    def test_with_frozen_brokers_callers_return_at_their_deadline_and_every_message_arrives_once(self):
        producer = self.producer()
        producer.publish(self.topic, [b"0"], timeout=SECONDS).raise_for_undelivered()
        for node in self.cluster.nodes:
            node.freeze()
        frozen_at = time.monotonic()
        reports, ages, first_told_at = [], [], None
        while time.monotonic() - frozen_at < FROZEN_SECONDS:
            begun = time.monotonic()
            reports.append(producer.publish(self.topic, [b"%d" % len(reports)] * 20, timeout=CALLER_SECONDS))
            self.assertTrue(-0.1 < time.monotonic() - begun - CALLER_SECONDS < BUSY_SECONDS)
            first_told_at = first_told_at or time.monotonic()
            ages.append(producer.health().oldest_unacknowledged_seconds)
            self.assertGreaterEqual(ages[-1], begun - first_told_at)
        for node in self.cluster.nodes:
            node.thaw()
        self.assertEqual([20] * len(reports), [len(report.unknown) for report in reports])
        self.assertEqual({DeliveryTimeout}, {type(delivery.error) for r in reports for delivery in r.unknown})
        self.assertEqual(sorted(ages), ages)
        for report in reports:
            producer.retry(report, timeout=RECOVERY_SECONDS).raise_for_undelivered()
        log = self.log(self.topic, PARTITIONS)
        with each_once():
            self.assertEqual(1 + 20 * len(reports), len(log))
        self.check_that_nothing_is_doubled(log)


@periodic("like TestThreeNodes, with the driver confluent")
class TestThreeNodesOnConfluent(ThreeNodesCase):
    driver = "confluent"
    test_killing_the_leader = TestThreeNodes.test_killing_the_leader_under_load_loses_no_message
    test_an_outage_of_two_brokers = TestThreeNodes.test_an_outage_of_two_of_three_brokers_loses_no_message


class TestOneNode(FaultCase):
    @periodic("long outage; the normal run kills the leader under load")
    def test_messages_for_a_broker_that_is_down_are_delivered_when_it_starts(self):
        topic = self.fixture.topic()
        self.cluster.node(1).kill()
        producer = self.producer()
        for number in range(100):
            producer.send(topic, b"%d" % number)
        report = producer.publish(topic, [b"100", b"101"], timeout=0.5)
        self.assertEqual((0, 2), (report.delivered_count, len(report.unknown)))
        self.cluster.node(1).restart()
        self.assertEqual(2, producer.retry(report, timeout=RECOVERY_SECONDS).delivered_count)
        self.assertEqual((100, True), ((sent := producer.flush(SECONDS)).delivered_count, sent.ok))
        self.assertEqual([b"%d" % number for number in range(102)], [record.value for record in self.log(topic)])

    # Rule 11
    @periodic("long outage; the normal run kills the leader under load")
    def test_a_full_disk_neither_loses_nor_duplicates_messages(self):
        folder = self.mounted(size="40m")
        self.fixture = self.useFixture(KafkaClusterFixture(data_dir=folder / "kafka"))
        self.cluster = self.fixture.cluster
        topic = self.fixture.topic()
        producer = self.producer()
        acknowledged, reports = set(), []
        while self.cluster.node(1).running:
            if reports and not reports[-1].ok:  # the disk is full, or the broker was busy
                reports[-1] = producer.retry(reports[-1], timeout=3)
            else:
                self.assertLess(len(reports), 100, "the disk does not become full")
                reports.append(producer.publish(topic, [b"%d" % len(reports) + bytes(1000)] * 1000, timeout=3))
            acknowledged |= {delivery.message_id for delivery in reports[-1].delivered}
        subprocess.run(["mount", "-o", "remount,size=400m", str(folder)], check=True)
        self.cluster.node(1).restart()
        producer.retry(reports[-1], timeout=RECOVERY_SECONDS).raise_for_undelivered()
        log = self.log(topic)
        self.assertEqual(1000 * len(reports), len(log))
        self.check_that_nothing_acknowledged_is_lost(acknowledged, log)
        self.check_that_nothing_is_doubled(log)

    def mounted(self, size):
        """Return a folder on a separate small disk; skip the test if no disk can be mounted."""
        folder = Path(tempfile.mkdtemp())
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
        )
        if mount.returncode:
            self.skipTest(f"a small disk cannot be mounted: {mount.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        return folder


class TestMetadataWithoutBrokers(Waiting, base.BaseTestCase):
    def test_clients_that_have_no_broker_left_connect_again(self):
        """Without the reconnection, one of the two clients had no broker left after the first round, in four of four
        runs."""
        fixture = self.useFixture(SharedKafkaCluster(1, proxied=True))
        topic, proxy = fixture.topic(), fixture.cluster.proxy
        connection = ConnectionSettings(fixture.cluster.bootstrap_servers)
        often = {"topic.metadata.refresh.interval.ms": "500"}
        reading = ConsumerSettings(connection, (topic,), topic, options=often)
        with (
            open_producer(ProducerSettings(connection, options=often)) as producer,
            open_consumer(reading) as consumer,
        ):
            for sent in range(1, 5):
                self.assertTrue(producer.publish(topic, [b"%d" % sent], timeout=SECONDS).ok)
                self.wait_until(lambda sent=sent: b"%d" % sent in [each.value for each in consumer.poll(timeout=0.1)])
                fault = Fault.hide_brokers(times=4)
                proxy.add(fault)
                self.wait_until(lambda fault=fault: consumer.poll(timeout=0.1).errors or fault.taken == 4)
                proxy.remove(fault)
