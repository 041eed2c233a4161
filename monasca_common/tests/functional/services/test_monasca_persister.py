# SPDX-License-Identifier: Apache-2.0
"""The published monasca-persister 9.0.0 with this library stores every metric in InfluxDB, even if processes are
killed.

It writes a batch and then commits it. A point is written again only if the persister is killed in between.
"""

import collections
import contextlib
import http.client
import threading
import time
import uuid
from collections import Counter

from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.services.environments import environment_of_old
from monasca_common.tests.functional.services.service_case import ServiceCase
from monasca_common.tests.functional.storage import influxdb_server
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import body_of, http_server, respond, serve
from monasca_common.tests.unit.persister import envelopes

_SECONDS = 60


class InfluxRelay:
    """``writes``: the lines of each request that InfluxDB has acknowledged, in order."""

    def __init__(self):
        self.writes: list[list[str]] = []
        self._withheld = threading.Event()  # set after a response was withheld
        self._is_withholding = False
        self._is_refusing = False
        self._server = http_server(self._answer, keep_alive=True)
        self.close = serve(self._server)

    @property
    def port(self):
        return self._server.server_port

    def withhold_answers(self):
        """Withhold all responses to writes from now on."""
        self._is_withholding = True

    def has_withheld(self):
        """Return whether a write was stored whose response was withheld."""
        return self._withheld.is_set()

    def refuse(self, *, refuse=True):
        """Start or stop answering with status 503."""
        self._is_refusing = refuse

    def answer(self):
        """Stop withholding responses. Withheld responses are never sent."""
        self._is_withholding = False
        self._withheld.clear()

    def lines(self):
        """Return the number of writes of each line."""
        return collections.Counter(line for write in list(self.writes) for line in write)

    def _answer(self, handler):
        answer = self._write(handler.path, handler.headers.get("Content-Type", "text/plain"), body_of(handler))
        with contextlib.suppress(ConnectionError):  # the client was killed
            if answer is None:
                handler.close_connection = True
                handler.rfile.read(1)  # until the waiting client has disconnected
                return
            status, text = answer
            respond(handler, status, text, {"Content-Type": "application/json"})

    def _write(self, path, content_type, body):
        """Return the status and body of InfluxDB's response, or ``None`` to withhold it."""
        is_points = path.startswith("/write")
        if is_points and self._is_refusing:
            return 503, b'{"error":"away for a test"}'
        connection = http.client.HTTPConnection("127.0.0.1", influxdb_server.server().http_port, timeout=_SECONDS)
        connection.request("POST", path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
        connection.close()
        if is_points and status == http.HTTPStatus.NO_CONTENT:
            self.writes.append(body.decode().splitlines())
            if self._is_withholding:
                self._withheld.set()
                return None
        return status, text


_BATCH = 50

_CONFIGURATION = """\
[kafka]
num_processors = 1
max_wait_time_seconds = 1
[kafka_metrics]
uri = {servers}
topic = {metrics}
group_id = {group}
batch_size = {batch}
[kafka_alarm_history]
enabled = {has_alarms}
uri = {servers}
topic = {alarms}
group_id = {group}-alarms
batch_size = {batch}
[kafka_events]
enabled = false
[influxdb]
ip_address = 127.0.0.1
port = {port}
database_name = {database}
user = somebody
password = something
[repositories]
ignore_parse_point_error = false
"""


class PersisterServiceCase(ServiceCase):
    service = "monasca-persister"

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic(2)
        self.alarm_topic = f"{self.topic}-alarms"
        self.database = f"published_{uuid.uuid4().hex[:12]}"
        self.addCleanup(influxdb_server.server().query, f'DROP DATABASE "{self.database}"')
        self.published = 0
        self.base_ms = time.time_ns() // 1_000_000 - 3_600_000

    def relay(self):
        relay = InfluxRelay()
        self.addCleanup(relay.close)
        return relay

    def start_persister(self, relay, name="persister", *, has_alarms=False, environment=None):
        configuration = _CONFIGURATION.format(
            servers=self.servers,
            metrics=self.topic,
            alarms=self.alarm_topic,
            has_alarms=has_alarms,
            group=self.group,
            batch=_BATCH,
            port=relay.port,
            database=self.database,
        )
        self.environment = environment or type(self).environment
        return self.start("monasca-persister", configuration, name)

    def publish_metrics(self, numbers):
        self.publish(self.topic, [envelopes.metric(number, time_ms=self.base_ms) for number in numbers])

    def stored(self, series="cpu.percent"):
        """Return the numbers of the points in InfluxDB."""
        try:
            found = influxdb_server.server().query(f'SELECT * FROM "{series}"', self.database)
        except RuntimeError as error:
            self.assertIn("database not found", str(error))
            return []
        return sorted(values[0] - self.base_ms for each in found for values in each["values"])

    def wait_for(self, numbers, series="cpu.percent"):
        wanted = sorted(numbers)

        def what():
            stored = self.stored(series)
            missing, others = sorted(set(wanted) - set(stored)), sorted(set(stored) - set(wanted))
            return f"{len(wanted)} points of {series}; missing: {missing}, beyond them: {others}"

        self.wait_until(lambda: self.stored(series) == wanted, what)

    def flow_until(self, condition, what):
        """Publish metrics until the condition is true."""

        def flowing():
            self.publish_metrics(range(self.published, self.published + 60))
            self.published += 60
            return condition()

        self.wait_until(flowing, what)


class MonascaPersisterTest(PersisterServiceCase):
    def test_published_messages_are_stored_once(self):
        self.cluster.create_topic(self.alarm_topic, 1)
        relay = self.relay()
        self.publish_metrics(range(2000))
        self.publish(self.alarm_topic, [envelopes.alarm(number, now_ms=self.base_ms) for number in range(70)])
        persister = self.start_persister(relay, has_alarms=True)
        self.wait_for(range(2000))
        self.wait_for(range(70), "alarm_state_history")
        self.assertEqual(0, persister.stop())  # by then, InfluxDB has also responded to all writes that it stored
        with each_once():
            self.assertEqual({1}, set(relay.lines().values()))
        with each_once():
            self.assertEqual(2070, len(relay.lines()))

    @periodic("test_published_messages_are_stored_once is in the normal run")
    def test_a_kill_between_write_and_commit_repeats_the_batch_without_loss(self):
        relay = self.relay()
        persister = self.start_persister(relay)
        self.flow_until(lambda: len(relay.writes) >= 2, "two batches")
        relay.withhold_answers()
        self.flow_until(relay.has_withheld, "a batch that is written and not committed")
        persister.kill()
        relay.answer()
        uncommitted = relay.writes[-1]
        self.start_persister(relay)
        self.wait_for(range(self.published))
        doubles = {line for line, times in relay.lines().items() if times > 1}
        with each_once():
            self.assertEqual(set(uncommitted), doubles)

    @periodic("test_published_messages_are_stored_once is in the normal run")
    def test_a_failing_database_ends_the_service_without_loss(self):
        relay = self.relay()
        relay.refuse()
        self.publish_metrics(range(120))
        persister = self.start_persister(relay)
        self.assertNotEqual(0, persister.wait())
        self.assertIn("Error writing to database", persister.text())
        relay.refuse(refuse=False)
        self.start_persister(relay)
        self.wait_for(range(120))
        with each_once():
            self.assertEqual({1}, set(relay.lines().values()))

    @periodic("test_published_messages_are_stored_once is in the normal run")
    def test_one_of_three_members_is_killed_and_another_is_added(self):
        self.topic = self.fixture.topic(6)
        relays = [self.relay() for _ in range(4)]
        members = [self.start_persister(relay, f"member-{number}") for number, relay in enumerate(relays[:3])]
        self.flow_until(lambda: all(relay.writes for relay in relays[:3]), "a batch of each member")
        relays[0].withhold_answers()
        self.flow_until(relays[0].has_withheld, "a batch that is written and not committed")
        members[0].kill()
        uncommitted = set(relays[0].writes[-1])
        self.start_persister(relays[3], "member-3")
        self.flow_until(lambda: relays[3].writes, "a batch of the new member")
        self.wait_for(range(self.published))
        doubles = {line for line, times in sum((each.lines() for each in relays), Counter()).items() if times > 1}
        with each_once():
            self.assertEqual(uncommitted, doubles)

    @periodic("test_published_messages_are_stored_once is in the normal run")
    def test_the_start_waits_for_an_unavailable_broker(self):
        relay = self.relay()
        self.publish_metrics(range(60))
        [node] = self.cluster.nodes
        node.kill()
        persister = self.start_persister(relay)
        self.wait_until(
            lambda: "Connection refused" in persister.text(), "the persister's word on a broker that is away"
        )
        node.restart()
        self.wait_for(range(60))

    @periodic("test_published_messages_are_stored_once is in the normal run")
    def test_a_missing_topic_does_not_delay_others(self):
        relay = self.relay()
        self.publish_metrics(range(60))
        self.start_persister(relay, has_alarms=True)
        self.wait_for(range(60))
        self.cluster.create_topic(self.alarm_topic, 1)
        self.publish(self.alarm_topic, [envelopes.alarm(number, now_ms=self.base_ms) for number in range(20)])
        self.wait_for(range(20), "alarm_state_history")


@periodic("test_published_messages_are_stored_once is in the normal run")
class LibraryMigrationTest(PersisterServiceCase):
    def test_migration_from_the_old_library_and_back(self):
        relay, old = self.relay(), environment_of_old(self.service)
        for number, environment in enumerate((old, None, old)):
            self.publish_metrics(range(number * 300, number * 300 + 300))
            persister = self.start_persister(relay, f"persister-{number}", environment=environment)
            self.wait_for(range(number * 300 + 300))
            persister.stop()
        with each_once():
            self.assertEqual(900, len(relay.lines()))

    def test_members_with_both_libraries_share_a_group(self):
        relays, old = [self.relay() for _ in range(3)], environment_of_old(self.service)
        first = self.start_persister(relays[0], "old", environment=old)
        ours = self.start_persister(relays[1], "ours")
        self.flow_until(lambda: all(relay.writes for relay in relays[:2]), "a batch of each member")
        first.stop()
        self.start_persister(relays[2], "old-again", environment=old)
        self.flow_until(lambda: relays[2].writes, "a batch of the one that went back")
        ours.stop()
        self.publish_metrics(range(self.published, self.published + 300))
        self.wait_for(range(self.published + 300))
