# SPDX-License-Identifier: Apache-2.0
"""The published monasca-notification 9.0.0 with this library notifies of each alarm, even if processes are killed.

It posts, writes a record of the post to a topic, and then commits. If it is killed in between, it posts once more, and
never otherwise. Failed posts are written to another topic and retried half a minute later.
"""

import collections
import contextlib
import json
import threading
import time
from collections import Counter

import confluent_kafka
from confluent_kafka.admin import AdminClient
from sqlalchemy.engine import make_url

from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.services.service_case import ServiceCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import body_of, http_server, serve
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.waiting import PATIENCE_SECONDS


class WebhookReceiver:
    """``posts``: alarm id and status of each post in order; the status is ``None`` if no response was sent."""

    def __init__(self):
        self.posts: list[tuple[str, int | None]] = []
        self.status = 200
        self.is_silent = False
        self.slow_seconds: dict[str, float] = {}  # by alarm id, the duration of the response to its next post
        self._over = threading.Event()
        self._server = http_server(self._answer)
        self._close = serve(self._server)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self):
        self._over.set()
        self._close()

    def alarms(self, *statuses):
        """Return how often the response to each alarm had one of these statuses."""
        return collections.Counter(alarm for alarm, status in list(self.posts) if status in statuses)

    def _answer(self, handler):
        alarm = json.loads(body_of(handler))["alarm_id"]
        if seconds := self.slow_seconds.pop(alarm, 0):
            self._over.wait(seconds)
        status = None if self.is_silent else self.status
        self.posts.append((alarm, status))
        with contextlib.suppress(ConnectionError):  # the client was killed
            if status is None:
                handler.rfile.read(1)  # until then
            else:
                handler.send_response(status)
                handler.end_headers()


_CONFIGURATION = """\
[kafka]
url = {servers}
group = {group}
alarm_topic = {topic}
notification_topic = {topic}-sent
notification_retry_topic = {topic}-retry
periodic = 1:{topic}-periodic
[zookeeper]
periodic_path = 1:/notification/1_second
[notification_processor]
number = {processors}
[notification_types]
enabled = webhook
[webhook_notifier]
timeout = 60
[database]
repo_driver = postgresql
[postgresql]
host = {host}
port = {port}
user = {user}
database = {database}
[statsd]
enable = false
"""

# The tables of monasca-api's database that the service reads: a receiver of all alarms, and an active alarm. Its
# PostgreSQL driver passes an id where psycopg2 expects a list of parameters; ids of one character work as both. (Its
# SQLAlchemy driver does not start, and its MySQL driver needs MySQL.)
_STATEMENTS = (
    "CREATE TABLE notification_method_type (name text PRIMARY KEY)",
    "CREATE TABLE notification_method (id text PRIMARY KEY, type text, name text, address text, period integer)",
    "CREATE TABLE alarm_action (action_id text, alarm_definition_id text, alarm_state text)",
    "CREATE TABLE alarm (id text PRIMARY KEY, state text)",
    "INSERT INTO notification_method_type VALUES ('WEBHOOK')",
    "INSERT INTO notification_method VALUES ('m', 'WEBHOOK', 'receiver', '{address}', {period})",
    "INSERT INTO alarm_action VALUES ('m', 'definition', 'ALARM')",
    "INSERT INTO alarm VALUES ('a', 'ALARM')",
)


@periodic("a published service; the normal run contains MonascaPersisterTest")
class MonascaNotificationTest(ServiceCase):
    service = "monasca-notification"

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic(4)
        for kind in ("sent", "retry"):
            self.cluster.create_topic(f"{self.topic}-{kind}", 1)
        # These clients query the group and never join it.
        self._admin = AdminClient(self.cluster.direct_options())
        self._reader = confluent_kafka.Consumer({**self.cluster.direct_options(), "group.id": self.group})
        self.addCleanup(self._reader.close)
        self.published = 0
        self.server = self.useFixture(SharedPostgresql()).server
        self.databases = {}
        self.receivers = []
        self.receiver = self.add_receiver()

    def add_receiver(self):
        receiver = WebhookReceiver()
        self.addCleanup(receiver.close)
        self.receivers.append(receiver)
        return receiver

    def database(self, receiver, period):
        """Return a database with this receiver, which the service notifies again after ``period`` seconds."""
        if receiver not in self.databases:
            name = make_url(self.server.create_database()).database
            self.addCleanup(self.server.execute, f'DROP DATABASE "{name}" WITH (FORCE)')
            for statement in _STATEMENTS:
                self.server.execute(statement.format(address=receiver.url, period=period), database=name)
            self.databases[receiver] = name
        return self.databases[receiver]

    def start_service(self, receiver=None, *, processors=1, period=0):
        receiver = receiver or self.receiver
        database = self.database(receiver, period)
        where = make_url(self.server.url(database))
        configuration = _CONFIGURATION.format(
            servers=self.servers,
            group=self.group,
            topic=self.topic,
            processors=processors,
            host=where.host,
            port=where.port,
            user=where.username,
            database=database,
        )
        return self.start("monasca-notification", configuration, f"notification-{self.receivers.index(receiver)}")

    def ends(self, topic):
        """Return the end of the log of each partition."""
        return {
            one.partition: self._reader.get_watermark_offsets(one, timeout=PATIENCE_SECONDS)[1]
            for one in self._partitions(topic)
        }

    def is_read(self, topic):
        """Return whether the group has committed all messages that existed when its commits were read."""
        committed = self._reader.committed(self._partitions(topic), timeout=PATIENCE_SECONDS)
        return self.ends(topic) == {one.partition: max(0, one.offset) for one in committed}

    def has_settled(self, members):
        """Return whether the group has this number of members and each has an assignment."""
        [asked] = self._admin.describe_consumer_groups([self.group], request_timeout=PATIENCE_SECONDS).values()
        group = asked.result(PATIENCE_SECONDS)
        return group.state is confluent_kafka.ConsumerGroupState.STABLE and len(group.members) == members

    def _partitions(self, topic):
        numbers = self._reader.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
        return [confluent_kafka.TopicPartition(topic, number) for number in numbers]

    def publish_alarms(self, numbers):
        now_ms = time.time_ns() // 1_000_000
        self.publish(self.topic, [envelopes.alarm(number, now_ms=now_ms) for number in numbers])

    # A process that waits for a silent receiver delays a rebalance. So receivers become silent only after the group is
    # stable: it consists of the processors and the retry engine of each service; the periodic engine joins when its
    # topic exists.

    def flow_until(self, condition, what):
        """Publish alarms until the condition is true."""

        def flowing():
            self.publish_alarms(range(self.published, self.published + 8))
            self.published += 8
            return condition()

        self.wait_until(flowing, what)

    def alarms(self, status):
        """Return how often a receiver responded to each alarm with this status."""
        return sum((receiver.alarms(status) for receiver in self.receivers), Counter())

    def wait_for(self, numbers):
        """Wait until each alarm was accepted and all messages are committed."""
        wanted = {f"alarm-{number}" for number in numbers}
        self.wait_until(lambda: self.alarms(200).keys() == wanted, f"{len(wanted)} notifications")
        self.wait_until(lambda: self.is_read(self.topic), "the commit of all")

    def sent(self):
        return sum(self.ends(f"{self.topic}-sent").values())

    def test_each_alarm_is_notified_once_while_the_periodic_topic_is_missing(self):
        self.publish_alarms(range(100))
        service = self.start_service(processors=2)
        self.wait_for(range(100))
        with each_once():
            self.assertEqual({1}, set(self.receiver.alarms(200).values()))
        self.assertEqual(100, self.sent())
        self.assertEqual(0, service.stop())

    def test_a_kill_between_post_and_commit_repeats_posts_without_loss(self):
        service = self.start_service(processors=2)
        self.wait_until(lambda: self.has_settled(2 + 1), "the processors' and the retry engine's place in the group")
        self.flow_until(lambda: len(self.receiver.posts) >= 20, "twenty notifications")
        self.receiver.is_silent = True
        self.flow_until(lambda: len(self.receiver.alarms(None)) == 2, "a post of each processor without a response")
        service.kill()
        self.receiver.is_silent = False
        self.start_service(processors=2)
        self.wait_for(range(self.published))
        with each_once():
            self.assertEqual({1}, set(self.receiver.alarms(200).values()))
        self.assertEqual(2, self.receiver.alarms(None).total())

    def test_one_of_two_members_is_killed_and_another_is_added(self):
        second, third = self.add_receiver(), self.add_receiver()
        first_service = self.start_service(self.receiver)
        self.start_service(second)
        self.wait_until(lambda: self.has_settled(2 * (1 + 1)), "the place in the group of all that read")
        self.flow_until(lambda: all(each.alarms(200) for each in (self.receiver, second)), "posts of both")
        self.receiver.is_silent = True
        self.flow_until(lambda: self.receiver.alarms(None), "a post without a response")
        first_service.kill()
        self.start_service(third)
        self.flow_until(lambda: third.alarms(200), "posts of the new one")
        self.wait_for(range(self.published))
        with each_once():
            self.assertEqual({1}, set(self.alarms(200).values()))
        self.assertEqual(1, self.alarms(None).total())

    def test_refused_notifications_are_retried_even_after_a_kill(self):
        self.receiver.status = 500
        self.publish_alarms(range(30))
        service = self.start_service()
        self.wait_until(lambda: sum(self.ends(f"{self.topic}-retry").values()) == 30, "30 refused notifications")
        self.wait_until(lambda: self.is_read(self.topic), "the commit of all")
        service.kill()
        self.receiver.status = 200
        self.start_service()
        self.wait_for(range(30))
        self.wait_until(lambda: self.is_read(f"{self.topic}-retry"), "the commit of the retried")
        with each_once():
            self.assertEqual({1}, set(self.receiver.alarms(200).values()))
        self.assertEqual(self.receiver.alarms(200).keys(), self.receiver.alarms(500).keys())

    def test_a_receiver_slower_than_the_session_loses_no_partition(self):
        self.receiver.slow_seconds = {"alarm-0": 12}  # longer than a session, which is ten seconds
        self.publish_alarms(range(20))
        self.start_service()
        self.wait_for(range(20))
        with each_once():
            self.assertEqual({1}, set(self.receiver.alarms(200).values()))

    def test_a_periodic_notification_is_repeated_until_the_alarm_is_over(self):
        self.cluster.create_topic(f"{self.topic}-periodic", 1)
        alarm = envelopes.alarm(0, now_ms=time.time_ns() // 1_000_000).replace(b"alarm-0", b"a")
        self.publish(self.topic, [alarm])
        self.start_service(period=1)
        self.wait_until(lambda: self.receiver.alarms(200).total() >= 4, "repeated notifications")
        self.server.execute("UPDATE alarm SET state = 'OK'", database=self.databases[self.receiver])
        # While the alarm is active, there is always an uncommitted message; the last one is not notified.
        self.wait_until(lambda: self.is_read(f"{self.topic}-periodic"), "the end of the notifications")
        self.assertEqual(self.receiver.alarms(200).total(), sum(self.ends(f"{self.topic}-periodic").values()))

    def test_the_service_start_waits_for_an_unavailable_broker(self):
        self.publish_alarms(range(10))
        [node] = self.cluster.nodes
        node.kill()
        service = self.start_service()
        self.wait_until(lambda: "Connection refused" in service.text(), "its word on a broker that is away")
        node.restart()
        self.wait_for(range(10))
