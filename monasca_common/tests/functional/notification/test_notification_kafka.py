# SPDX-License-Identifier: Apache-2.0
"""The command with a real Kafka and real receivers: SIGKILL at critical points, also with groups, and outages."""

import collections
import email
import itertools
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

import fixtures
import psutil
import sqlalchemy as sa
from oslotest import base

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.kafka import plugins
from monasca_common.kafka.message import Record
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.notification.deferred_sender import DeferredSender
from monasca_common.notification.handlers import NotificationHandler
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.sql import tables
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.changed_command import (
    arm_workers,
    command_after,
    end_with_the_test,
    patch,
    replace_at_once,
    set_constants,
)
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.postgresql_server import PostgresqlServer
from monasca_common.tests.unit.notification import receivers
from monasca_common.tests.unit.notification.notification_case import NotificationCase, ids
from monasca_common.tests.unit.notification.receivers import change
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

GROUPED_ALARMS, AT_ONCE, GROUP_DEATHS = 40, 8, 5
_NEVER_MS = 2**53


class MailServer(receivers.MailServer):
    """Refuses every third mail."""

    def __init__(self):
        self._numbers = itertools.count(1)
        super().__init__()

    async def handle_DATA(self, *arguments):  # noqa: N802 - what aiosmtpd calls
        return "451 4.3.0 later" if next(self._numbers) % 3 == 0 else await super().handle_DATA(*arguments)

    def ids(self):
        """Return the id of each accepted mail, in order."""
        mails = [email.message_from_bytes(text)["Message-ID"] for _, text in self.mails]
        return [message_id.strip("<>").partition("@")[0] for message_id in mails]


CHANGES = 24
DEATHS = 3
MOST_OF_A_CORE = 0.5  # during an outage
# The time after which a dead member is removed. It is so long that a live member is not removed on a busy machine.
QUICK_SESSION_SECONDS = 1.5
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
session_timeout_seconds = {session}
linger_ms = 0
max_wait_time_seconds = 0.01
[storage]
driver = {driver}
[database]
connection = {url}
[kafka_notifications]
topic = {changes}
group_id = {group}
[alarm_processor]
[retry_engine]
interval = {interval}
max_attempts = 1000
[notification]
allowed_networks = 127.0.0.1/32
[webhook_notifier]
timeout = {webhook_timeout}
[email_notifier]
server = 127.0.0.1
port = {smtp_port}
starttls = false
"""
WEBHOOK_TIMEOUT_SECONDS = 2.0
_HANG_SECONDS = 2 * WEBHOOK_TIMEOUT_SECONDS


def commits_before_it_sends():
    handle, committed = NotificationHandler.__call__, OffsetTracker.committed
    unsent = collections.deque()

    def handled(handler, message):
        unsent.append((handler, message))
        return []

    def sends_then(tracker, progress):
        committed(tracker, progress)
        while progress and unsent:
            handle(*unsent.popleft())

    patch(NotificationHandler, "__call__", handled)
    patch(OffsetTracker, "committed", sends_then)


class NotificationKafkaCase(NotificationCase, Waiting, base.BaseTestCase):
    mails = None
    more_configuration = ""
    session_seconds = PATIENCE_SECONDS
    interval_seconds, max_interval_seconds = 0.1, 0.5

    def setUp(self):
        super().setUp()
        self.fixture = fixture = self.useFixture(SharedKafkaCluster())
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.changes = fixture.topic(2)
        fixture.cluster.create_topic(f"{self.changes}.dlq", 1)
        self.servers = fixture.cluster.client_options("admin")["bootstrap.servers"]
        self.producer = plugins.kafka_producer(ProducerSettings(ConnectionSettings(self.servers), linger_ms=0))
        self.addCleanup(self.producer.close, 1)
        self.database = self.database_settings()
        open_storage(self.database).upgrade()
        self.alarms_database = AlarmsDatabase(self.database)
        self.addCleanup(self.alarms_database.close)

    def database_settings(self):
        return StorageSettings("sqlite", f"sqlite:///{self.folder}/monasca.sqlite")

    def publish(self, numbers):
        now_ms = time.time_ns() // 1_000_000
        made = [change(alarm_id=f"a{number}", time_ms=now_ms) for number in numbers]
        records = [Record(each.message, key=each.alarm_id.encode()) for each in made]
        self.producer.publish(self.changes, records, timeout=PATIENCE_SECONDS).raise_for_undelivered()

    def start(self, *fail_points, mutant=None, deaths=DEATHS):
        """Start the service. ``fail_points``: those of the first workers, of which this number of workers die."""
        file = self.folder / "notification.conf"
        file.write_text(
            _CONFIGURATION.format(
                servers=self.servers,
                session=QUICK_SESSION_SECONDS if fail_points else self.session_seconds,
                driver=self.database.driver,
                url=self.database.connection,
                changes=self.changes,
                interval=self.interval_seconds,
                group=f"group-{uuid.uuid4().hex[:12]}",
                webhook_timeout=WEBHOOK_TIMEOUT_SECONDS,
                smtp_port=self.mails.port if self.mails else 25,
            )
            + self.more_configuration
        )
        self.log = self.folder / "notification.log"
        constants = {
            "monasca_common.notification.deferred_sender._LEASE_MS": 3000,
            "monasca_common.notification.settings.MAX_INTERVAL_SECONDS": self.max_interval_seconds,
        }
        changes = [(set_constants, constants), (replace_at_once,), (end_with_the_test,)]
        if fail_points:
            changes.append((arm_workers, deaths, *fail_points))
        if mutant:
            changes.append((mutant,))
        command = [*command_after(*changes), "notification", "--config-file", file]
        process = start_process(self, command, self.log, stdin=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        return process

    def deaths(self):
        """Return the number of workers that have died."""
        return self.log.read_text().count(" and is replaced")

    def sent(self):
        return sum(state == "sent" for (state,) in self.ledger("state"))


class CrashCase(NotificationKafkaCase):
    def receive(self):
        """Create a receiver that accepts two of three requests, and fails, disconnects, hangs or asks to wait at
        the others, and a mail server."""
        self.hook = hook = self.receiver()
        good = hook.answers(200)
        bad = (hook.answers(500), hook.answers(429, Retry_After="1"), hook.cuts, hook.hangs_for(_HANG_SECONDS))
        turns, faults = itertools.count(), itertools.cycle(bad)
        self.taken = []

        def answer(handler):
            if next(turns) % 3 == 2:
                next(faults)(handler)
            else:
                self.taken.append(handler.headers["Idempotency-Key"])
                good(handler)

        hook.answer = answer
        self.method(hook.url())
        self.mails = MailServer()
        self.addCleanup(self.mails.close)
        self.method("ops@example.org", kind="EMAIL")

    def crash(self, *fail_points, wanted=2 * CHANGES, **named):
        """Send every change to both receivers, with workers that are killed repeatedly."""
        self.receive()
        self.publish(range(CHANGES))
        process = self.start(*fail_points, **named)
        self.wait_until(lambda: self.sent() >= wanted, lambda: f"{wanted} sent instead of {self.sent()}")
        if fail_points:
            self.wait_until(self.deaths, "a death")
        return process

    @each_once()
    def assert_none_lost_and_doubles_counted(self, changes=CHANGES):
        repeats = dict(self.ledger("id", "repeats"))
        taken = collections.Counter(self.taken + self.mails.ids())
        self.assertEqual(2 * changes, len(repeats))
        self.assertEqual(repeats.keys(), taken.keys())
        self.assertEqual([], [key for key, times in taken.items() if times - 1 > repeats[key]])
        self.assertLessEqual(set(ids(self.hook)), repeats.keys())
        return sum(repeats.values())


class CrashTest(CrashCase):
    @periodic("the crash tests have the same checks")
    def test_without_a_crash_each_notification_is_received_once_and_the_stop_is_clean(self):
        process = self.crash()
        process.terminate()
        self.assertEqual(0, process.wait(PATIENCE_SECONDS))
        self.assertEqual(0, self.assert_none_lost_and_doubles_counted())
        self.assertIn("stopped: dead letters 0; restarts 0", self.log.read_text())

    @periodic("a variant of test_a_kill_after_sending_loses_nothing_and_counts_repeats")
    def test_a_kill_before_sending_loses_nothing(self):
        self.crash("notification.before_send=kill@5")
        self.assertGreater(self.assert_none_lost_and_doubles_counted(), 0)

    @periodic("PostgresqlCrashTest runs the same test on PostgreSQL")
    def test_a_kill_after_sending_loses_nothing_and_counts_repeats(self):
        self.crash("notification.after_send=kill@5")
        self.assertGreater(self.assert_none_lost_and_doubles_counted(), 0)

    @periodic("a variant of test_a_kill_after_sending_loses_nothing_and_counts_repeats")
    def test_a_kill_after_claiming_a_retry_loses_nothing(self):
        self.crash("notification.after_claim=kill@4")
        self.assert_none_lost_and_doubles_counted()

    @periodic("a variant of test_a_kill_after_sending_loses_nothing_and_counts_repeats")
    def test_a_kill_before_storing_the_outcome_of_a_retry_loses_nothing(self):
        self.crash("notification.after_attempt=kill@2")
        self.assert_none_lost_and_doubles_counted()

    @periodic("the processor's TestCrash covers this fail point")
    def test_a_kill_before_a_commit_loses_nothing(self):
        self.crash("processor.before_commit=kill")
        self.assert_none_lost_and_doubles_counted()

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_commits_before_it_sends_loses_notifications(self):
        self.crash("notification.before_send=kill", mutant=commits_before_it_sends, deaths=1, wanted=0)
        # The commit of the first worker was lost with it; the service notifies of later changes.
        self.publish([CHANGES])
        self.wait_until(lambda: (f"a{CHANGES}",) in self.ledger("alarm_id"), "the last")
        self.assertLess(len(set(self.taken)), CHANGES + 1)


class PostgresqlCrashTest(CrashCase):
    def database_settings(self):
        return StorageSettings("postgresql", self.useFixture(SharedPostgresql()).url)

    def test_a_kill_after_sending_loses_nothing_and_counts_repeats(self):
        self.crash("notification.after_send=kill@5")
        self.assertGreater(self.assert_none_lost_and_doubles_counted(), 0)


class OutageCase(NotificationKafkaCase):
    """``seconds``: the length of an outage."""

    seconds = 4.0
    # A reopened consumer waits this long, because a restarted Kafka does not know that the old member has ended.
    session_seconds = 30.0
    interval_seconds, max_interval_seconds = 2.0, 4.0  # attempts use CPU; the test measures busy waiting

    def cpu(self, process):
        """Return the seconds of CPU that the service has used."""
        parent = psutil.Process(process.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (parent, *parent.children(recursive=True)))

    def assert_it_does_not_spin(self, process):
        before = self.cpu(process)
        time.sleep(self.seconds)  # the measured time
        share = (self.cpu(process) - before) / self.seconds
        sys.stderr.write(f"{self.id()}: {share:.1%} of a core during {self.seconds:.0f} s of outage\n")
        self.assertLess(share, MOST_OF_A_CORE)

    def through_an_outage(self, down, up):
        """Send some changes before an outage and some after it; one receiver fails from the start to the end of the
        outage."""
        bad, good = self.receiver(), self.receiver()
        bad.answer = bad.answers(503)
        self.method(bad.url())
        self.method(good.url())
        self.publish(range(CHANGES))
        process = self.start()
        self.wait_until(lambda: len(set(ids(good))) == CHANGES, "the notifications of the other receiver")
        self.wait_until(lambda: len(bad.requests) >= CHANGES, "attempts")
        down()
        self.assert_it_does_not_spin(process)
        bad.answer = bad.answers(200)
        up()
        self.publish(range(CHANGES, 2 * CHANGES))
        self.wait_until(lambda: self.sent() == 4 * CHANGES, lambda: f"all sent instead of {self.sent()}")
        repeats = dict(self.ledger("id", "repeats"))
        doubles = collections.Counter(ids(good))
        self.assertEqual([], [key for key, times in doubles.items() if times - 1 > repeats[key]])
        self.assertEqual(2 * CHANGES, len(set(ids(good))))


class OutageTest(OutageCase):
    def test_a_receiver_that_is_down_loses_nothing_and_delays_no_other(self):
        nothing = lambda: None  # noqa: E731 - only the receiver is down
        self.through_an_outage(nothing, nothing)

    @periodic("long outage; the normal run contains a receiver that is down")
    def test_a_kafka_that_is_down_loses_nothing(self):
        (node,) = self.fixture.cluster.nodes
        self.through_an_outage(node.kill, node.restart)


@periodic("long outage; the normal run contains a receiver that is down")
class DatabaseOutageTest(OutageCase):
    def database_settings(self):
        self.server = self.enterContext(PostgresqlServer(settings={"fsync": "off"}))
        return StorageSettings("postgresql", self.server.create_database())

    def test_a_database_that_is_down_loses_nothing(self):
        self.through_an_outage(self.server.kill, self.server.restart)


def forgets_who_is_in_a_message():
    run = DeferredSender.run

    def unsealed_run(releases):
        # The deferred notifications are sent with the next message.
        table = tables.notification_deferred
        statement = table.update().where(table.c.kind == "held").values(message_id="", due=_NEVER_MS)
        releases._deferred._database.write(lambda connection: connection.execute(statement))
        run(releases)

    patch(DeferredSender, "run", unsealed_run)


class GroupCrashTest(NotificationKafkaCase):
    more_configuration = "[notification]\ngroup_by = definition\ngroup_wait = 0.2\n"

    def setUp(self):
        super().setUp()
        self.hook = self.receiver()
        self.method(self.hook.url())

    def messages(self):
        """Return {id of a message: its alarms}."""
        bodies = [(headers["Idempotency-Key"], json.loads(body)) for _, headers, body in list(self.hook.requests)]
        return {key: {each["alarm_id"] for each in body.get("alarms", [body])} for key, body in bodies}

    def alarms(self):
        return set().union(*self.messages().values())

    def held(self):
        return len(self.alarms_database.rows(sa.select(tables.notification_deferred.c.id)))

    def crash(self, fail_points):
        process = self.start(fail_points, deaths=GROUP_DEATHS)
        for start in range(0, GROUPED_ALARMS, AT_ONCE):
            self.publish(range(start, start + AT_ONCE))
        self.wait_until(
            lambda: len(self.alarms()) == GROUPED_ALARMS,
            lambda: f"{GROUPED_ALARMS} notified instead of {len(self.alarms())}",
        )
        self.wait_until(self.deaths, "a death")
        self.wait_until(lambda: not self.held(), lambda: f"{self.held()} are held")
        process.terminate()
        self.assertEqual(0, process.wait(PATIENCE_SECONDS))

    @each_once()
    def assert_each_alarm_is_in_one_message(self):
        self.assertEqual(GROUPED_ALARMS, sum(map(len, self.messages().values())))
        repeats = dict(self.ledger("id", "repeats"))
        doubles = {key: times - 1 for key, times in collections.Counter(ids(self.hook)).items()}
        self.assertEqual([], [key for key, times in doubles.items() if times > repeats[key]])
        self.assertEqual({("sent",)}, set(self.ledger("state")))

    @periodic("a variant of test_after_a_kill_after_sending_each_alarm_is_in_one_message")
    def test_after_a_kill_between_seal_and_claim_each_alarm_is_in_one_message(self):
        self.crash("notification.after_fix=kill")
        self.assert_each_alarm_is_in_one_message()

    @periodic("a variant of test_after_a_kill_after_sending_each_alarm_is_in_one_message")
    def test_after_a_kill_before_the_members_end_each_alarm_is_in_one_message(self):
        self.crash("notification.after_attempt=kill")
        self.assert_each_alarm_is_in_one_message()

    def test_after_a_kill_after_sending_each_alarm_is_in_one_message(self):
        self.crash("notification.after_send=kill")
        self.assert_each_alarm_is_in_one_message()

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_forgets_the_members_of_a_message_sends_an_alarm_in_two_messages(self):
        self.publish(range(3))
        self.start("notification.after_send=kill", mutant=forgets_who_is_in_a_message, deaths=1)
        self.wait_until(self.deaths, "a death")
        self.publish([3])
        self.wait_until(lambda: len(self.alarms()) == 4, lambda: f"4 notified, and not {self.alarms()}")
        self.assertGreater(sum(map(len, self.messages().values())), 4)
