# SPDX-License-Identifier: Apache-2.0
"""Commands on a cluster of a thousand topics."""

import contextlib
import json
import types
from collections import Counter

import confluent_kafka
import fixtures
from confluent_kafka.admin import AdminClient, NewTopic

from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.functional.cli.cluster_case import SECONDS, ClusterCommandCase
from monasca_common.tests.periodic import periodic

TOPICS = 1000
NAMES = [f"many-{number:04}" for number in range(TOPICS)]
_JSON = ("-f", "json")
_ASKS = (
    *("list_topics", "describe_topics", "describe_configs", "list_offsets"),
    *("list_consumer_groups", "describe_consumer_groups", "list_consumer_group_offsets"),
)
_filled: set[str] = set()  # the bootstrap servers of clusters


class LargeCase(ClusterCommandCase):
    # Not the cluster that other tests share.
    cluster_settings = types.MappingProxyType({"config": {"log.cleaner.threads": "2"}})

    def setUp(self):
        super().setUp()
        self.servers = self.cluster.direct_options()["bootstrap.servers"]
        if self.servers not in _filled:
            self.fill()
            _filled.add(self.servers)

    def fill(self):
        """Publish a message to each topic; a group has read every second topic."""
        client = AdminClient({**self.cluster.direct_options(), "log_level": 0})
        wanted = [NewTopic(name, 1, 1) for name in NAMES]
        for made in client.create_topics(wanted, operation_timeout=SECONDS, request_timeout=SECONDS).values():
            made.result(SECONDS)
        self.cluster.create_topic("monasca-audit", 1)
        self.cluster.create_topic("monasca-lag", 1, config={"cleanup.policy": "compact"})
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), "log_level": 0})
        for name in NAMES:
            producer.produce(name, b"{}", partition=0)
        self.assertEqual(0, producer.flush(SECONDS))
        read = {TopicPartition(name, 0): number % 2 for number, name in enumerate(NAMES)}
        self.admin.alter_group_offsets("wide", read)

    def configure(self, text=""):
        folder = self.useFixture(fixtures.TempDir()).path
        given = f"""\
[kafka]
bootstrap_servers = {self.servers}
[audit]
enabled = true
folder = {folder}
{text}"""
        self.configuration = given


@periodic("a cluster of a thousand topics")
class TestAThousandTopics(LargeCase):
    """The number of requests does not grow with the number of topics, and no topic is omitted."""

    def setUp(self):
        super().setUp()
        self.configure()

    @contextlib.contextmanager
    def few_requests(self, most=30):
        counts = Counter()

        def counted(name):
            original = getattr(AdminClient, name)

            def call(client, *arguments, **options):
                counts[name] += 1
                return original(client, *arguments, **options)

            return call

        with contextlib.ExitStack() as stack:
            for name in _ASKS:
                stack.enter_context(fixtures.MonkeyPatch(f"confluent_kafka.admin.AdminClient.{name}", counted(name)))
            yield
        self.assertTrue(0 < counts.total() <= most, counts)

    def rows(self, *words, status=0):
        found, out, err = self.run_command(*words, *_JSON)
        self.assertEqual(status, found, err)
        return json.loads(out)

    def test_listing_a_thousand_topics_needs_few_requests(self):
        with self.few_requests():
            rows = self.rows("topic", "list", "--name", "many-*")
        self.assertEqual((NAMES, {1}, {"fine"}), tuple(_columns(rows, "topic", "messages", "state")))
        self.assertEqual([1], [row["messages"] for row in self.rows("topic", "show", NAMES[500])])
        new = f"new-{self.own}"
        self.addCleanup(self.admin.delete_topic, new)
        created = ("create", new, "--partitions", "1", "--replication-factor", "1", "--execute")
        status, out, err = self.run_command("topic", *created)
        self.assertEqual((0, f"{new}: created\n"), (status, out), err)
        for words in (("tail", NAMES[500], "--from-beginning", "--no-follow"), ("sample", NAMES[501])):
            with self.few_requests():
                status, out, _ = self.run_command("topic", *words, "-f", "json")
            self.assertEqual((0, 0), (status, json.loads(out)["offset"]))

    def test_lag_and_offsets_of_a_thousand_topics_need_few_requests(self):
        with self.few_requests():
            rows = self.rows("lag", "show", "--group", "wide")
        self.assertEqual(NAMES, [row["topic"] for row in rows])
        self.assertEqual(TOPICS // 2, sum(row["unread"] for row in rows))
        with self.few_requests():
            (row,) = self.rows("lag", "list", "--group", "wide")
        self.assertEqual((TOPICS, TOPICS // 2), (row["partitions"], row["unread"]))
        words = ("--group", "wide", "--topic", NAMES[500], "-f", "json")
        before = self.admin.group_offsets("wide")
        (shown,) = json.loads(self.run_command("offsets", "show", *words)[1])
        self.assertEqual((0, 1), (shown["stored"], shown["left"]))
        for target in ("--to-latest", "--to-earliest"):
            self.assertEqual(0, self.run_command("offsets", "reset", target, "--execute", *words)[0])
            moved = self.admin.group_offsets("wide")
            self.assertEqual(target == "--to-latest", moved.pop(TopicPartition(NAMES[500], 0)) == 1)
            self.assertEqual(TOPICS - 1, len(moved.items() & before.items()))

    def test_listing_dead_letters_of_a_thousand_topics_needs_few_requests(self):
        words = ("--topic", NAMES[0], "--group", self.own)
        [letter] = self.rows("dlq", "list", *words)
        self.assertEqual(f"{NAMES[0]}/0/0", letter["dead_letter"])
        [replayed] = self.rows("dlq", "replay", "--execute", *words)
        self.assertEqual(("not replayable", 1), (replayed["outcome"], replayed["dead_letters"]))
        [deletable] = self.rows("dlq", "purge", "--all", *words)
        self.assertEqual((1, False), (deletable["offsets"], deletable["deleted"]))
        self.assertEqual(0, self.run_command("dlq", "show", f"{NAMES[0]}/0/0")[0])

    def test_durability_and_audit_of_a_thousand_topics_need_few_requests(self):
        with self.few_requests():
            rows = self.rows("durability", "check", status=1)
        self.assertLessEqual(set(NAMES), {row["topic"] for row in rows if row["rule"] == "one_copy"})
        self.assertEqual([], self.rows("audit", "show", "--topic", "many-*", status=3))


def _columns(rows, first, *others):
    """Return the first column, and the distinct values of the other columns."""
    yield [row[first] for row in rows]
    yield from ({row[name] for row in rows} for name in others)
