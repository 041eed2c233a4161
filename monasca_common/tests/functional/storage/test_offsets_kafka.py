# SPDX-License-Identifier: Apache-2.0
"""``monasca-common offsets`` as an operator runs it after a service has stopped because its stored offset is
invalid."""

import json
from unittest import mock

from testtools.content import Content
from testtools.content_type import UTF8_TEXT

from monasca_common.cli import offsets as offsets_command
from monasca_common.kafka import plugins
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.command import run_main
from monasca_common.tests.functional.kafka.consumer_case import PROTOCOLS
from monasca_common.tests.functional.persister.persister_case import PARTITIONS, PersisterCase
from monasca_common.tests.periodic import periodic


class OffsetsCase(PersisterCase):
    def setUp(self):
        super().setUp()
        self.everything_printed = []
        error_text = Content(UTF8_TEXT, lambda: ["\n".join(self.everything_printed).encode()])
        self.addDetail("what the commands wrote to standard error", error_text)

    def offsets(self, *arguments):
        """Run the command, and return the exit status and the rows. ``self.error_text`` is the standard error."""
        where = ["--config-file", str(self.folder / "persister.conf"), "--group", self.group, "-f", "json"]
        status, out, self.error_text = run_main("offsets", *arguments, *where)
        self.everything_printed.append(f"{' '.join(arguments)}: {status} {self.error_text}")
        return status, json.loads(out) if out else None

    def make_topic_again(self, partitions):
        """Recreate the topic, and return when the broker serves the new one, with a new producer. With a producer
        of the old topic, the first message was occasionally acknowledged and not in the log."""
        self.cluster.admin.delete_topic(self.topic)
        self.cluster.create_topic(self.topic, partitions)
        everything = [TopicPartition(self.topic, number) for number in range(partitions)]

        def is_served():
            try:
                return set(self.cluster.admin.end_offsets(everything).values()) == {0}
            except RetriableError:
                return False

        self.wait_until(is_served, "the new topic")
        self.producer = self.open_producer()

    def wait_for_failure(self, persister):
        self.wait_until(lambda: persister.worker().get("state") == "failed", "the stop")
        reason = persister.worker()["reason"]
        self.assertIn("monasca-common offsets reset", reason)
        return reason

    def wait_for_rows(self, numbers):
        self.wait_until(lambda: set(self.rows()) >= set(numbers), "the rows")


class TestWithSqlite(OffsetsCase):
    # Rule 24
    @periodic("runs a complete reset; the unit tests cover its rules")
    def test_a_recreated_topic_is_stored_after_a_reset(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        self.assert_ends_in_order(persister)
        self.make_topic_again(PARTITIONS)
        self.publish(range(100, 120))
        persister = self.start()
        self.assertIn("was deleted and recreated", self.wait_for_failure(persister))
        with each_once():
            self.assertEqual(set(range(100)), set(self.rows()))
        self.assertEqual(1, self.offsets("show")[0])
        persister.stop()
        self.assertEqual(0, self.offsets("reset", "--to-earliest", "--execute")[0], self.error_text)
        self.assertEqual(0, self.offsets("show")[0])
        persister = self.start()
        self.wait_for_rows(range(120))
        self.assert_ends_in_order(persister)
        self.assert_clean()

    # Rule 24
    @periodic("runs a complete reset; the unit tests cover its rules")
    def test_an_offset_removed_by_retention_is_reset_and_lost_messages_are_counted(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        self.assert_ends_in_order(persister)
        self.publish(range(100, 120))
        # Delete the unread offsets 50 to 54 of each partition.
        first = {TopicPartition(self.topic, number): 55 for number in range(PARTITIONS)}
        self.cluster.admin.delete_records(first)
        persister = self.start()
        self.assertIn("is not in the log", self.wait_for_failure(persister))
        persister.stop()
        status, rows = self.offsets("reset", "--to-earliest", "--execute")
        self.assertEqual((0, ["5 deleted unread"] * 2), (status, [row["problem"] for row in rows]), self.error_text)
        persister = self.start()
        self.wait_for_rows(range(110, 120))
        self.assert_ends_in_order(persister)
        with each_once():
            self.assertEqual(sorted([*range(100), *range(110, 120)]), sorted(self.rows()))

    def test_messages_read_again_after_a_reset_are_stored_once(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        self.assertEqual(1, self.offsets("reset", "--to-earliest", "--execute")[0])
        self.assertIn("1 member", self.error_text)
        self.assert_ends_in_order(persister)
        status, rows = self.offsets("reset", "--to-earliest", "--execute")
        self.assertEqual((0, [50, 50]), (status, [row["read_again"] for row in rows]), self.error_text)
        persister = self.start()
        self.wait_until(lambda: persister.counter("rows_total", outcome="repeated") == 100, "the second reading")
        self.assert_ends_in_order(persister)
        self.assert_clean()


@periodic("repeats TestWithSqlite on PostgreSQL")
class TestWithPostgresql(OffsetsCase):
    database = "postgresql"

    def test_a_recreated_topic_is_stored_after_a_reset_without_a_restart(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        self.make_topic_again(1)
        self.publish(range(100, 120), partition=0)
        self.wait_until(lambda: self.offsets("show")[0] == 1, "the new topic")
        # A failed worker retries, and is a member in the meantime: the command runs between two retries.
        reset = ("reset", "--to-earliest", "--execute")
        self.wait_until(lambda: self.offsets(*reset)[0] == 0, "the reset")
        self.wait_for_rows(range(120))
        self.assert_ends_in_order(persister)
        self.assert_clean()

    def test_a_member_that_joins_during_a_reset_resumes_at_the_new_offsets(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        with mock.patch.object(offsets_command, "_members", return_value=[]):  # the member joined in the meantime
            status, _ = self.offsets("reset", "--to-earliest", "--execute")
        self.assertEqual(0, status, self.error_text)
        self.publish(range(100, 100 + PARTITIONS))
        self.wait_until(lambda: persister.counter("rows_total", outcome="repeated") == 100, "the second reading")
        self.wait_for_rows(range(100 + PARTITIONS))
        self.assert_ends_in_order(persister)
        self.assert_clean()


class TestGroupsInKafka(OffsetsCase):
    def test_a_group_without_a_database_is_reset_in_kafka_once_its_members_have_left(self):
        self.publish(range(100))
        configuration = f"[kafka]\nbootstrap_servers = {self.servers}\n"
        for protocol, facts in PROTOCOLS.items():
            self.group = f"{self.topic}-{protocol}"
            text = f"{configuration}[kafka_metrics]\ntopic = {self.topic}\ngroup_id = {self.group}\n"
            (self.folder / "persister.conf").write_text(text)
            settings = ConsumerSettings(self.connection, (self.topic,), self.group, **facts)
            with plugins.kafka_consumer(settings) as consumer:
                self.read(consumer, 100)
                self.assertEqual(1, self.offsets("reset", "--to-offset", "40", "--execute")[0], protocol)
                self.assertIn("1 member", self.error_text)
            status, rows = self.offsets("reset", "--to-offset", "40", "--execute")
            self.assertEqual((0, {"kafka"}), (status, {row["kept_in"] for row in rows}), self.error_text)
            with plugins.kafka_consumer(settings) as consumer:
                self.assertEqual({40, 49}, {*self.ends(self.read(consumer, 20))})

    def read(self, consumer, count):
        """Read and commit this number of messages."""
        offsets = []
        while len(offsets) < count:
            batch = consumer.poll(timeout=1.0)
            self.assertEqual((), batch.errors)
            offsets += [offset for part in batch.partitions for offset in part.offsets]
            consumer.commit(batch)
        return offsets

    def ends(self, offsets):
        return min(offsets), max(offsets)
