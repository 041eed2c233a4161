# SPDX-License-Identifier: Apache-2.0
"""``monasca-common dlq`` with Kafka: interrupted replays are continued, and no message is replayed twice."""

import json
import signal
from collections import Counter

import fixtures

from monasca_common.kafka import TopicPartition, dead_letters
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterGatherer
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.administration import set_topic_config
from monasca_common.tests.functional.cli.cluster_case import SECONDS, ClusterCommandCase
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.periodic import periodic

LETTERS = 100_000


def _sent_back(rows):
    return sum(row["dead_letters"] for row in rows if row["outcome"] == "replayed")


class DlqCase(ClusterCommandCase):
    command = ("dlq",)

    def setUp(self):
        super().setUp()
        self.origin = self.fixture.topic(2)
        self.letters = self.fixture.topic(2)
        self.options = ("--topic", self.letters, "--group", f"replay-{self.own}")

    def bury(self, count, *, first=0, error="ValueError", partition=0, origin=None, **headers):
        origin = (origin or self.origin).encode()
        records = [
            (
                None,
                b"%d" % number,
                [
                    (dead_letters.ORIGIN_TOPIC, origin),
                    (dead_letters.ORIGIN_PARTITION, b"%d" % partition),
                    (dead_letters.ORIGIN_OFFSET, b"%d" % number),
                    (dead_letters.ORIGIN_MESSAGE_ID, b"id-%d" % number),
                    (dead_letters.ERROR_CLASS, error.encode()),
                    (dead_letters.ERROR_TEXT, b"no number"),
                    *((name, value.encode()) for name, value in headers.items()),
                ],
            )
            for number in range(first, first + count)
        ]
        self.put(self.letters, *records, partition=partition, **{"message.max.bytes": 2_000_000})

    def ids(self):
        """Return how often each message is in its original topic."""
        return Counter(dict(each.headers())["message-id"] for each in read_topic(self.cluster, self.origin, 2))

    def replay(self, *arguments):
        """Return the number of replayed dead letters."""
        return _sent_back(self.rows("replay", *self.options, "--execute", *arguments))

    def outcomes(self, status):
        """Return the dead letters by outcome and reason of a run with this exit status."""
        found, out, self.text = self.run_command("replay", *self.options, "--execute", "-f", "json")
        self.assertEqual(status, found, self.text)
        return {(row["outcome"], row["reason"]): row["dead_letters"] for row in json.loads(out)}

    def sent(self):
        return sum(self.admin.end_offsets([TopicPartition(self.origin, number) for number in range(2)]).values())


class TestReplay(DlqCase):
    # Rule 17
    @periodic("100,000 messages; test_selected_dead_letters_are_replayed_and_the_others_stay_pending is quick")
    def test_a_hundred_thousand_dead_letters_are_replayed_once_despite_interrupts(self):
        self.bury(1, first=LETTERS, origin="gone")  # notes then list the later dead letters of this partition
        for partition in (0, 1):
            self.bury(LETTERS // 2, first=partition * LETTERS // 2, partition=partition)
        with fixtures.EnvironmentVariable("FORCE_COLOR", "1"):  # as on a terminal
            process = self.start("list", "--by-reason", *self.options)
        self.assertTrue(process.stderr.read(1))  # of the progress bar
        process.terminate()
        self.assertNotIn("Traceback", process.communicate(timeout=SECONDS)[1])
        self.assertEqual(143, process.returncode)
        self.kill_at("replay.before_commit=kill@40")
        process = self.start("replay", *self.options, "--execute", "-f", "json")
        self.wait_until(lambda: self.sent() > LETTERS // 2, "dead letters are being replayed")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((130, True), (process.returncode, _sent_back(json.loads(out)) > 0), err)
        self.kill_at("replay.after_commit=kill@10")
        self.assertLess(len(self.ids()), LETTERS)
        self.assertEqual(1, self.outcomes(4)["refused", "there is no topic gone"])
        ids = self.ids()
        with each_once():
            self.assertEqual(({b"id-%d" % number for number in range(LETTERS)}, {1}), (set(ids), set(ids.values())))

    def kill_at(self, fail_point, **options):
        process = self.start("replay", *self.options, "--execute", fail_point=fail_point, **options)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(-signal.SIGKILL, process.returncode, err)

    # Rule 17
    @periodic("mutant; the normal run contains the test that detects it")
    def test_a_mutant_without_transactions_replays_messages_twice(self):
        self.bury(600)
        mutant = (
            "from dataclasses import replace; from monasca_common.operations.dead_letters import topics; "
            "topics.replace = lambda of, **new: replace(of, **new | dict.fromkeys({'transactional_id'} & new.keys()))"
        )
        self.kill_at("replay.before_commit=kill", mutant=mutant)
        self.replay()
        ids = self.ids()
        self.assertEqual((600, 2), (len(ids), max(ids.values())))

    # Rule 17
    @periodic("a variant of a replay")
    def test_the_later_of_two_concurrent_runs_continues(self):
        self.bury(4000)
        first = self.start("replay", *self.options, "--execute", "--rate", "200")
        self.wait_until(lambda: self.sent() > 0, "dead letters are being replayed")
        self.replay()
        out, err = first.communicate(timeout=SECONDS)
        self.assertEqual(4, first.returncode, (out, err))
        self.assertIn("a later run has taken over", err)
        with each_once():
            self.assertEqual(Counter({b"id-%d" % number: 1 for number in range(4000)}), self.ids())

    def test_selected_dead_letters_are_replayed_and_the_others_stay_pending(self):
        self.bury(3, error="ValueError")
        self.bury(3, first=3, error="KeyError")
        self.bury(3, first=6, error="ValueError")
        self.assertEqual(3, self.replay("--reason", "keyerror"))
        self.assertEqual({b"id-3", b"id-4", b"id-5"}, set(self.ids()))
        waiting = self.rows("list", *self.options)
        self.assertEqual([0, 1, 2, 6, 7, 8], [int(each["dead_letter"].rpartition("/")[2]) for each in waiting])
        self.assertEqual(6, self.replay())
        self.assertEqual((9, {1}), (len(self.ids()), set(self.ids().values())))
        self.assertEqual(0, self.replay())

    def test_refused_dead_letters_stay_pending_and_all_others_are_replayed_once(self):
        narrow = self.fixture.topic(config={"max.message.bytes": "1000"})
        gone = self.fixture.topic()
        set_topic_config(self.admin, self.letters, {"max.message.bytes": "2000000"})
        self.bury(3)
        self.bury(2, first=3, origin=gone)
        self.bury(1, first=5, origin=narrow, large="x" * 2000)
        self.bury(2, first=6)
        self.bury(1, first=8, large="x" * 1_500_000)
        self.bury(1, first=9)
        self.admin.delete_topic(gone)
        for sent in (6, 0):
            outcomes = self.outcomes(4 if sent else 1)
            self.assertEqual(sent, outcomes.get(("replayed", ""), 0))
            self.assertEqual(2, outcomes["refused", f"there is no topic {gone}"])
            self.assertIn("1048588", " ".join(reason for _, reason in outcomes))
            self.assertIn("4 dead letters left for the next run, because ", self.text)
        self.cluster.create_topic(gone, 1)
        set_topic_config(self.admin, self.origin, {"max.message.bytes": "2000000"})
        set_topic_config(self.admin, narrow, {"max.message.bytes": "2000000"})
        self.assertEqual(4, self.replay())
        with each_once():
            self.assertEqual(Counter({b"id-%d" % number: 1 for number in (0, 1, 2, 6, 7, 8, 9)}), self.ids())
        self.assertEqual([2, 1], [len(read_topic(self.cluster, topic)) for topic in (gone, narrow)])

    @periodic("a variant of a replay")
    def test_a_refused_write_does_not_block_other_writes(self):
        compacted = self.fixture.topic(config={"cleanup.policy": "compact"})  # refuses messages without a key
        self.bury(2)
        self.bury(2, first=2, origin=compacted)
        self.bury(2, first=4)
        (refused, refused_count), replayed = sorted(self.outcomes(4).items())
        self.assertEqual((2, (("replayed", ""), 4)), (refused_count, replayed))
        self.assertIn("refused by its topic", refused[1])
        with each_once():
            self.assertEqual(Counter({b"id-%d" % number: 1 for number in (0, 1, 4, 5)}), self.ids())

    @periodic("a variant of a replay")
    def test_the_dashboard_counts_pending_dead_letters_without_notes_and_control_records(self):
        connection = ConnectionSettings(self.cluster.direct_options()["bootstrap.servers"])
        gather = DeadLetterGatherer(self.admin, connection, [self.letters], timeout_seconds=SECONDS)
        own = ("--topic", self.letters, "--execute")

        def pending():
            (figures,) = (each for each in gather(0) if each.topic == self.letters)
            return figures.pending, figures.unread

        self.bury(1, error="KeyError")
        self.bury(5, first=1)
        self.assertEqual((6, 0), pending())
        self.assertEqual(0, self.run_command("replay", *own, "--reason", "ValueError")[0])
        self.wait_until(lambda: pending() == (1, 0), "the brokers' response that the transaction has ended")
        self.assertIn("1 pending dead letter", self.run_command("list", "--topic", self.letters)[2])
        self.assertEqual(0, self.run_command("replay", *own)[0])
        self.wait_until(lambda: pending() == (0, 0), "the brokers' response that the transaction has ended")

    @periodic("the unit tests count what a dry run sends")
    def test_list_and_a_dry_run_send_nothing(self):
        self.bury(2)
        for words in (("list", "--by-reason"), ("replay",)):
            self.assertEqual(0, self.run_command(*words, *self.options)[0])
        self.assertEqual(0, self.sent())


class TestPurge(DlqCase):
    def first(self, partition=0):
        tp = TopicPartition(self.letters, partition)
        return self.admin.first_offsets([tp])[tp]

    def test_a_dry_run_counts_offsets_and_a_purge_deletes_them(self):
        self.bury(5)
        expected = {"topic": self.letters, "offsets": 5, "deleted": False}
        self.assertEqual([expected], self.rows("purge", *self.options, "--all"))
        self.assertEqual(0, self.first())
        self.assertEqual([expected | {"deleted": True}], self.rows("purge", *self.options, "--all", "--execute"))
        self.assertEqual(5, self.first())
        self.bury(1, first=9)
        self.assertEqual(1, self.replay())

    @periodic("a variant of a purge")
    def test_handled_dead_letters_are_deleted_with_their_notes(self):
        self.bury(2, error="ValueError")
        self.bury(2, first=2, error="KeyError")
        self.replay("--reason", "KeyError")
        self.assertEqual(3, self.run_command("purge", *self.options, "--dealt-with", "--execute")[0])
        self.replay()
        self.assertTrue(self.rows("purge", *self.options, "--dealt-with", "--execute")[0]["deleted"])
        self.assertLess(3, self.first())
        self.assertEqual([], self.rows("list", *self.options))


class TestShow(DlqCase):
    def test_a_dead_letter_is_shown_with_its_payload_on_request(self):
        self.bury(2, **{"x-auth-token": "hidden", dead_letters.FIRST_FAILURE: "1700000000000"})
        place = f"{self.letters}/0/1"
        shown = self.rows("show", place)
        self.assertEqual(f"{self.origin}/0/1", shown["origin"])
        self.assertEqual("2023-11-14T22:13:20.000+00:00", shown["first_failure"])
        self.assertNotIn("headers", shown)
        message = self.rows("show", place, "--payload")
        self.assertEqual(("1", True), (message["value"], "x-auth-token: ***" in message["headers"].splitlines()))

    def test_a_missing_dead_letter_ends_with_status_3_and_an_invalid_name_with_2(self):
        self.assertEqual(3, self.run_command("show", f"{self.letters}/0/7")[0])
        self.assertEqual(3, self.run_command("show", f"{self.letters}/9/0")[0])
        self.assertEqual(2, self.run_command("show", "anything")[0])
