# SPDX-License-Identifier: Apache-2.0
"""Copies from one real Kafka to another: as they were, each once, whoever is killed; and what compares them."""

import json
import signal
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from unittest import mock

import confluent_kafka
import fixtures

from monasca_common.cli import main
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import Batch, TopicPartition
from monasca_common.monitoring.mirror import mirror
from monasca_common.monitoring.mirror.positions import POSITIONS_TOPIC, read_positions
from monasca_common.tests.functional.monitoring.mirror_case import SECONDS, MirrorCase
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS

_COUNT = 100


class TestCopies(MirrorCase):
    def test_a_copy_has_the_partition_key_value_headers_and_timestamp_of_its_message(self):
        producer = confluent_kafka.Producer({**self.source.direct_options(), "log_level": 0})
        first = [("a", b"1"), ("message-id", b"x"), ("a", None), ("message-id", b"y"), ("ä", b"")]
        twice = [("message-id", b"twice")]
        for value, key, headers in ((b"1", b"k", first), (None, b"k", []), (b"", None, twice), (b"", None, twice)):
            producer.produce(self.topic, value, key=key, headers=headers, partition=1, timestamp=1_600_000_000_123)
        self.assertEqual(0, producer.flush(SECONDS))
        self.put(10, transactional_id=self.name)
        with self.mirror():
            self.wait_until_copied(14)
        self.assert_the_same()

    def test_a_topic_is_created_with_as_many_partitions_and_the_same_retention(self):
        self.source.admin.set_topic_config(self.topic, {"retention.ms": "123456789"})
        self.put(2)
        with self.mirror():
            self.wait_until_copied(2)
        self.assertEqual(2, self.target.admin.partition_counts()[self.topic])
        self.assertEqual("123456789", self.target.admin.topic_configs([self.topic])[self.topic]["retention.ms"])

    def test_a_topic_that_comes_later_is_copied_if_its_name_fits(self):
        self.put(2)
        with self.mirror(f"{self.topic}*", topic_refresh_seconds=1.0):
            self.wait_until_copied(2)
            later = f"{self.topic}-later"
            self.source.create_topic(later, 2)
            self.put(4, topic=later)
            self.wait_until_copied(4, later)
        self.assert_the_same(later)

    def test_it_goes_on_where_it_stopped_and_counts_what_it_copied(self):
        self.put(10)
        with self.mirror() as running:
            self.wait_until_copied(10)
        self.put(6, first=10)
        with self.mirror() as running:
            self.wait_until_copied(16)
            self.wait_until(lambda: running.status.copied == 6, "the count")
            self.assertEqual((True, ""), (running.status.health()[0], running.status.trouble))
        self.assert_the_same()

    def test_a_topic_that_is_recreated_in_the_target_is_copied_again(self):
        self.put(4)
        with self.mirror():
            self.wait_until_copied(4)
        self.target.admin.delete_topic(self.topic)
        with self.mirror():
            self.wait_until_copied(4)
        self.assert_the_same()

    def test_it_waits_for_the_transactions_of_others_behind_which_its_position_may_be(self):
        self.put(4)
        with self.mirror():
            self.wait_until_copied(4)
            other = confluent_kafka.Producer({**self.target.direct_options(), "transactional.id": uuid.uuid4().hex})
            other.init_transactions(SECONDS)
            other.begin_transaction()
            other.produce(POSITIONS_TOPIC, b"{}", key=b"{}")
            other.flush(SECONDS)
            self.put(4, first=4)
            self.wait_until_copied(8)
        self.put(4, first=8)
        ended = threading.Timer(2.0, other.commit_transaction)
        ended.start()
        self.addCleanup(ended.join)
        with self.mirror():
            self.wait_until_copied(12)
        self.assert_the_same()


class TestRefusals(MirrorCase):
    def assert_refused(self, text, *topics, **options):
        def run():
            with self.mirror(*topics, **options) as running:
                self.wait_until(lambda: running.ended, "the refusal")

        self.assertIn(text, str(self.assertRaises(ConfigurationError, run)))

    def test_fewer_partitions_in_the_target(self):
        self.target.create_topic(self.topic, 1)
        self.assert_refused("2 partitions in the source and 1 in the target")

    def test_a_topic_that_is_not_there(self):
        self.assert_refused("topic nobody: the source has no such topic", "nobody")

    def test_one_cluster_for_both(self):
        self.target = self.source
        self.assert_refused("the same cluster")

    def test_a_topic_that_another_mirror_copies(self):
        self.put(2)
        with self.mirror():
            self.wait_until_copied(2)
        first, self.name = self.name, f"{self.name}-other"
        self.assert_refused(f"copied by the mirror '{first}'")

    def test_a_topic_that_was_recreated_in_the_source(self):
        self.put(2)
        with self.mirror():
            self.wait_until_copied(2)
        self.source.admin.delete_topic(self.topic)
        self.source.create_topic(self.topic, 2)
        self.assert_refused("recreated in the source")

    def test_what_retention_took_before_it_was_copied_unless_that_may_be_skipped(self):
        self.put(4)
        with self.mirror():
            self.wait_until_copied(4)
        self.put(8, first=4)
        self.source.admin.delete_records({TopicPartition(self.topic, 0): 4})
        self.assert_refused("skip_deleted")
        with self.mirror(skip_deleted=True) as running:
            self.wait_until_copied(10)
            self.assertIn(b'skipped_total{topic="%s"} 2.0' % self.topic.encode(), self.metrics(running))

    def metrics(self, running):
        from prometheus_client import generate_latest

        return generate_latest(running.status.registry)


class TestCrashes(MirrorCase):
    def values(self):
        return sorted(int(each[2]) for each in self.read(self.target))

    def test_killed_before_or_after_a_commit_each_message_is_there_once(self):
        self.put(_COUNT)
        for point, nth in (("mirror.before_commit", 1), ("mirror.after_commit", 2), ("mirror.before_commit", 3)):
            self.run_and_kill(point, nth)
        self.run_to(_COUNT)
        self.assert_the_same()

    def test_positions_that_are_noted_after_the_copies_are_caught(self):
        self.put(_COUNT)
        self.run_and_kill("mirror.after_commit", 1, "notes_positions_after_the_copies")
        self.run_to(_COUNT + 1)
        self.assertGreater(len(self.values()), _COUNT)

    def test_positions_that_are_noted_before_the_copies_are_caught(self):
        self.put(_COUNT)
        self.run_and_kill("mirror.after_commit", 1, "notes_positions_before_the_copies")
        process = self.program()
        self.wait_until(lambda: self.is_done(), "the rest")
        self.stop(process)
        self.assertLess(len(self.values()), _COUNT)

    def is_done(self):
        positions = read_positions(self.target.admin, self.connection(self.target))
        return sum(at.next_offset for (name, _), at in positions.items() if name == self.name) == _COUNT

    def test_of_two_with_one_name_the_later_goes_on_and_the_earlier_ends_with_the_reason(self):
        self.put(_COUNT)
        status, errors = self.run_two("freezes_in_its_transaction")
        self.assertEqual(1, status, errors)
        self.assertIn("another process copies as mirror", errors)
        self.assert_the_same()

    def test_two_that_fence_nobody_are_caught(self):
        self.put(_COUNT)
        self.run_two("fences_nobody")
        self.assertGreater(len(self.values()), _COUNT)

    def run_two(self, mutant):
        """The first freezes in its transaction, and goes on when the second has copied everything."""
        first = self.program(mutant=mutant)
        self.wait_until(lambda: "T (stopped)" in Path(f"/proc/{first.pid}/status").read_text(), "the first one's halt")
        second = self.program()
        is_caught = mutant == "fences_nobody"
        # An open transaction hides what comes after it in the same partition.
        self.wait_until(self.is_done_uncommitted if is_caught else self.is_done, "the copies of the second")
        first.send_signal(signal.SIGCONT)
        if is_caught:
            self.wait_until(lambda: len(self.values()) > _COUNT, "what is there twice")
            first.kill()
        _, errors = first.communicate(timeout=PATIENCE_SECONDS)
        self.stop(second)
        return first.returncode, errors

    def is_done_uncommitted(self):
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        ends = self.target.admin.end_offsets(partitions, open_transactions=True)
        return sum(ends.values()) > _COUNT


class TestVerify(MirrorCase):
    def setUp(self):
        super().setUp()
        self.out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", self.out))

    def verify(self, *arguments):
        """The exit status, and the rows that it printed."""
        text = (
            f"[mirror_source]\nbootstrap_servers = {self.connection(self.source).bootstrap_servers}\n"
            f"[mirror_target]\nbootstrap_servers = {self.connection(self.target).bootstrap_servers}\n"
            f"[mirror]\nname = {self.name}\ntopics = {self.topic}\n"
        )
        path = self.create_tempfiles([("verify", text)], ".conf")[0]
        self.out.seek(0)
        self.out.truncate()
        status = main.main(["mirror", "verify", "--config-file", path, "-f", "json", *arguments])
        self.out.seek(0)
        return status, json.loads(self.out.read() or "null")

    def copy(self, count):
        self.put(count)
        with self.mirror():
            self.wait_until_copied(count)

    def test_copies_are_the_same_and_what_is_not_copied_yet_is_no_difference(self):
        self.copy(20)
        self.put(4, first=20)
        status, rows = self.verify()
        self.assertEqual(0, status)
        self.assertEqual([("SAME", 12, 10, 10, 2)] * 2, [_facts(row) for row in rows])

    def test_messages_that_are_missing_doubled_or_altered_are_named(self):
        poll, make = mirror.Mirror._poll, mirror.copy_of

        def losing(*arguments):
            batch = poll(*arguments)
            return Batch(tuple(part.without({2}) if part.offsets[0] == 0 else part for part in batch.partitions))

        def altering(message):
            copy = make(message)
            return replace(copy, value=b"altered") if message.value in (b"8", b"9") else copy

        with mock.patch.object(mirror.Mirror, "_poll", losing), mock.patch.object(mirror, "copy_of", altering):
            self.put(20)
            with self.mirror():
                self.wait_until_copied(18)
        self.put(2, first=6, cluster=self.target)
        status, rows = self.verify()
        self.assertEqual(1, status)
        self.assertEqual([("DIFFERENT", 10, 10, 8, 0)] * 2, [_facts(row) for row in rows])
        self.assertEqual([(1, 1, 1)] * 2, [(row["missing"], row["extra"], row["altered"]) for row in rows])
        _, rows = self.verify("--messages")
        found = {(row["kind"], row["source_offset"], row["message_id"], row["fields"]) for row in rows}
        missing = {("missing", 2, "id 4", ""), ("missing", 2, "id 5", "")}
        altered = {("altered", 4, "id 8", "value"), ("altered", 4, "id 9", "value")}
        self.assertEqual(missing | altered | {("extra", None, "id 6", ""), ("extra", None, "id 7", "")}, found)

    def test_since_leaves_out_what_is_older_on_both_sides(self):
        self.copy(20)
        since = "2023-11-14T22:13:20.010"  # of number 10
        status, rows = self.verify("--topic", self.topic, "--since", since)
        self.assertEqual(0, status)
        self.assertEqual([("SAME", 5, 5, 5, 0)] * 2, [_facts(row) for row in rows])

    def test_what_the_source_has_deleted_since_is_no_difference(self):
        self.copy(20)
        self.source.admin.delete_records({TopicPartition(self.topic, 0): 4})
        status, rows = self.verify()
        self.assertEqual(0, status)
        self.assertEqual([4, 0], [row["expired"] for row in rows])

    def test_a_mirror_that_copied_nothing_cannot_be_verified(self):
        self.assertEqual(2, self.verify()[0])


def _facts(row):
    return row["status"], row["source"], row["target"], row["equal"], row["behind"]
