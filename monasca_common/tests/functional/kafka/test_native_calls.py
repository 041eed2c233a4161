# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import psutil
from oslotest import base

from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic

# A leak of the smallest allocation (32 bytes) for one in ten messages exceeds it in the second half. In the first half,
# the client's queues reach the size that they need on this machine.
GROWTH_MIB = 12
SECONDS = 60.0


@periodic("test_native covers each call; this one looks for crashes, lost outcomes and growing memory")
class RandomCallsTest(base.BaseTestCase):
    def test_random_calls_neither_crash_nor_lose_an_outcome(self):
        command = [sys.executable, "-X", "faulthandler", "-m", "monasca_common.tests.functional.kafka.native_calls"]
        run = subprocess.run(
            [*command, "--minutes", "0.5"],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYTHONMALLOC": "malloc_debug"},
        )
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)


@periodic("takes minutes")
class ManyMessagesTest(base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 5

    def test_memory_does_not_grow_over_ten_million_messages(self):
        fixture = self.useFixture(SharedKafkaCluster(1))
        servers = fixture.cluster.client_options("admin")["bootstrap.servers"]
        command = [sys.executable, "-m", __name__, servers, fixture.topic(), str(10_000_000)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
        for what in ("sent", "read"):
            mebibytes = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith(what)]
            self.assertEqual(10, len(mebibytes))
            self.assertLess(max(mebibytes[5:]) - max(mebibytes[:5]), GROWTH_MIB, run.stdout)


def main(servers, topic, messages):
    """Send and read many messages, and print the resident memory in MiB after each tenth of them."""
    connection, tenth = ConnectionSettings(servers), messages // 10
    with open_producer(ProducerSettings(connection)) as producer:
        for _ in range(10):
            for number in range(tenth):
                producer.send(topic, b"%d" % number)
            producer.flush(SECONDS).raise_for_undelivered()
            print_memory("sent")
    with open_consumer(ConsumerSettings(connection, (topic,), "group")) as consumer:
        for _ in range(10):
            count = 0
            while count < tenth:
                batch = consumer.poll(min(10_000, tenth - count), timeout=SECONDS)
                count += len(batch)
                consumer.commit(batch)
            print_memory("read")


def print_memory(what):
    print(what, psutil.Process().memory_info().rss // 1024**2, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
