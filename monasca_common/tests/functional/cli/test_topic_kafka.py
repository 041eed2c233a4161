# SPDX-License-Identifier: Apache-2.0
"""``monasca-common topic`` on a real Kafka."""

import json
import signal

from monasca_common.tests.functional.cli.cluster_case import SECONDS, ClusterCommandCase


class TopicCase(ClusterCommandCase):
    command = ("topic",)

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic(2)

    def fill(self, count=10, partition=0):
        records = [
            ((b"even", b"odd")[number % 2], json.dumps({"reading": {"n": number}}).encode(), [("room", b"hall")])
            for number in range(count)
        ]
        self.put(self.topic, *records, partition=partition)

    def offsets(self, *arguments):
        return [(each["partition"], each["offset"]) for each in self.lines(*arguments)]


class TestTopics(TopicCase):
    def test_a_topic_is_created_listed_and_shown(self):
        name = f"made-{self.own}"
        arguments = ("create", name, "--partitions", "3", "--setting", "retention.ms=3600000")
        self.assertEqual((0, f"{name}: can be created\n"), self.run_command(*arguments)[:2])
        self.assertEqual([], self.named(name))
        arguments = (*arguments, "--execute")
        self.assertEqual(0, self.run_command(*arguments)[0])
        (row,) = self.named(name)
        self.assertEqual({"topic": name, "partitions": 3, "replicas": 1, "messages": 0, "state": "fine"}, row)
        self.assertEqual([0, 1, 2], [row["partition"] for row in self.rows("show", name)])
        settings = self.rows("show", name, "--settings")
        self.assertIn({"setting": "retention.ms", "value": "3600000"}, settings)
        status, _, err = self.run_command(*arguments)
        self.assertEqual((1, True), (status, "was not created: TOPIC_ALREADY_EXISTS" in err), err)

    def named(self, name):
        return [row for row in self.rows("list") if row["topic"] == name]

    def test_wrong_input_is_named_with_its_status(self):
        self.assertEqual(3, self.run_command("list", "--name", "nothing*")[0])
        for words, status, expected in (
            (("show", "nothing"), 2, "nothing: this topic does not exist"),
            (("tail", f"{self.topic}:7"), 2, "has 2 partitions, but no partition 7"),
            (("tail", f"{self.topic}:x"), 2, "or its partitions as topic:0,1"),
            (("sample", self.topic, "--count", "5000"), 2, "at most 1000"),
            (("tail", self.topic, "--field", "novalue"), 2, "is not a field"),
            (("create", "a b", "--partitions", "1"), 2, "is not the name of a topic"),
            (("create", "new", "--partitions", "1", "--replication-factor", "9"), 1, "INVALID_REPLICATION_FACTOR"),
            (("create", "new", "--partitions", "1", "--setting", "nonsense=1"), 1, "INVALID_CONFIG"),
            (("create", "new", "--partitions", "1", "--setting", "nonsense"), 2, "is not a setting"),
        ):
            found, _, err = self.run_command(*words)
            self.assertEqual((status, True), (found, expected in err), (words, err))


class TestTail(TopicCase):
    def test_existing_messages_are_selected_by_key_header_field_and_partition(self):
        self.fill()
        self.fill(2, partition=1)
        ended = ("--from-beginning", "--no-follow")
        self.assertEqual(12, len(self.offsets("tail", self.topic, *ended)))
        self.assertEqual([(1, 0), (1, 1)], self.offsets("tail", f"{self.topic}:1", *ended))
        self.assertEqual([(0, 7)], self.offsets("tail", f"{self.topic}:0", *ended, "--field", "reading.n=7"))
        odd = self.offsets("tail", f"{self.topic}:0", *ended, "--key", "odd", "--header", "room=hall")
        self.assertEqual([(0, number) for number in (1, 3, 5, 7, 9)], odd)
        self.assertEqual([(0, 8), (0, 9)], self.offsets("tail", f"{self.topic}:0", "--last", "2", "--no-follow"))
        self.assertEqual([(0, 0)], self.offsets("tail", f"{self.topic}:0", "--since", "2020-01-01", "--count", "1"))
        for words in (("--key", "none"), ("--header", "floor"), ("--until", "2020-01-01"), ("--field", "reading.x=1")):
            self.assertEqual(3, self.run_command("tail", self.topic, *ended, *words)[0], words)

    def test_an_empty_topic_ends_at_its_bound_with_status_3(self):
        self.assertEqual(3, self.run_command("tail", self.topic, "--seconds", "1")[0])
        self.assertEqual(3, self.run_command("tail", self.topic, "--from-beginning", "--no-follow")[0])
        self.assertEqual(3, self.run_command("sample", self.topic)[0])

    def test_a_tail_follows_until_an_interrupt_ends_it_with_status_0(self):
        process = self.start("tail", self.topic, "--from-beginning", "-f", "json")
        self.fill(1)
        self.assertEqual(0, json.loads(process.stdout.readline())["offset"])
        self.fill(1)
        self.assertEqual(1, json.loads(process.stdout.readline())["offset"])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual((0, ""), (process.returncode, err))

    def test_a_requested_message_is_shown_truncated_and_without_secrets(self):
        self.put(self.topic, (b"k", b"\x1b[31m" + b"x" * 500, [("X-Auth-Token", b"hidden"), ("room", b"hall")]))
        arguments = ("tail", f"{self.topic}:0", "--from-beginning", "--no-follow")
        _, out, _ = self.run_command(*arguments)
        self.assertNotIn("xxx", out)
        _, out, _ = self.run_command(*arguments, "--payload", "--payload-characters", "20")
        self.assertIn("  header  X-Auth-Token: ***\n  header  room: hall\n", out)
        self.assertIn("\\x1b[31mxxxxxxxxxxxx… (505 B)", out)
        self.assertNotIn("hidden", out)


class TestSample(TopicCase):
    def test_messages_are_drawn_from_all_partitions(self):
        self.fill(100)
        self.fill(100, partition=1)
        drawn = self.offsets("sample", self.topic, "--count", "150")
        self.assertEqual((150, {0, 1}), (len(set(drawn)), {partition for partition, _ in drawn}))
        self.assertEqual(3, self.run_command("sample", self.topic, "--until", "2020-01-01")[0])
