# SPDX-License-Identifier: Apache-2.0
"""Workers of the persister or the sink are killed one after another at random points: each message is one row.

``MONASCA_STRESS_KILLS``: the number of kills, 1,000 by default. ``MONASCA_STRESS_SEED`` repeats a run.
"""

import os
import random
import sys
import threading

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.tests.checker import ReportedOutcome, each_once
from monasca_common.tests.functional import changed_command
from monasca_common.tests.functional.persister.persister_case import PersisterCase
from monasca_common.tests.functional.sink.test_sink import SinkCase

KILLS = int(os.environ.get("MONASCA_STRESS_KILLS", "1000"))
SEED = os.environ.get("MONASCA_STRESS_SEED") or str(random.randrange(10**9))
CHUNK = 100
BAD_OF_A_CHUNK = 3
AHEAD = 1000  # the maximum backlog; a larger one takes longer at the end and tests nothing more
REBALANCE_SECONDS = 3.0
SECONDS_A_KILL = 20
MUTANTS_KILLS = 30
RARE_POINTS = ("processor.after_dead_letter", "processor.after_accounting", "processor.during_revoke")
POINTS = (
    "storage.before_write",
    "processor.after_poll",
    "storage.in_transaction",
    "storage.after_commit",
    "processor.after_handle",
    "processor.before_commit",
    *RARE_POINTS,
)


def fail_points():
    """Return random fail points for workers, one text for each."""
    lot = random.Random(SEED)
    texts = []
    for _ in range(200):
        point = lot.choice(POINTS)
        rare = point in RARE_POINTS
        # End the worker if it does not pass the fail point, as without a rebalance.
        texts.append(f"{POINTS[0]}=kill@{100 if rare else 30};{point}=kill@{1 if rare else lot.randint(1, 12)}")
    return texts


class KillsCase(PersisterCase):
    table = "measurements"

    def setUp(self):
        super().setUp()
        self.over = threading.Event()
        self.addCleanup(self.over.set)
        self.published = self.bad = 0

    def kill_and_kill(self, kills=KILLS, *, mutants=()):
        """Publish while workers are killed one after another, and store the remaining messages."""
        self.drop_key()  # a row written twice is stored twice
        # A member that returns with its own instance id does not wait for its session.
        arming = (changed_command.arm_workers, kills, *fail_points())
        changes = arming, (changed_command.replace_at_once,)
        persister = self.start(changes=changes, mutants=mutants, metrics="group_instance_id = stress")
        guest = threading.Thread(target=self.come_and_go)
        guest.start()
        seconds, what = kills * SECONDS_A_KILL, f"{kills} deaths, seed {SEED}"
        self.wait_until(lambda: self.feed(persister) >= kills, what, seconds=seconds)
        self.over.set()
        guest.join()
        self.wait_until(lambda: self.is_through(persister), "the end of the log", seconds=120)
        self.assertEqual(kills, persister.worker()["restarts"])
        self.assert_ends_in_order(persister)
        self.assertEqual({ReportedOutcome.ACKED}, set(self.outcomes.values()))
        verdict = self.verdict()
        sys.stderr.write(f"{self.database}: {kills} deaths, seed {SEED}: {verdict}\n")
        return verdict

    def feed(self, persister):
        """Publish while the backlog is small; return the number of dead workers."""
        stored = self.scalar(f"SELECT count(*) FROM {self.table}")
        if self.published - self.bad - stored < AHEAD:
            numbers = range(self.published, self.published + CHUNK)
            bad = frozenset(numbers[:: CHUNK // BAD_OF_A_CHUNK][:BAD_OF_A_CHUNK])
            self.publish(numbers, bad=bad)
            self.published += CHUNK
            self.bad += len(bad)
        return persister.worker().get("restarts", 0)

    def scalar(self, statement):
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(statement).scalar()

    def come_and_go(self):
        """Let a member take partitions, neither store nor commit, and leave."""
        settings = ConsumerSettings(
            self.connection, (self.topic,), self.group, session_timeout_seconds=1.5, stop_timeout_seconds=1.0
        )
        while not self.over.wait(REBALANCE_SECONDS):
            consumer = plugins.kafka_consumer(settings)
            try:
                for _ in range(20):
                    if consumer.assignment() or self.over.is_set():
                        break
                    consumer.poll(1, timeout=0.1)
            except MessagingError:
                continue
            finally:
                consumer.close(1)


class Kills:
    # Rule 24
    def test_each_message_is_one_row_even_if_workers_are_killed(self):
        verdict = self.kill_and_kill()
        with each_once():
            self.assertTrue(verdict.clean, f"seed {SEED}: {verdict}")
        self.assertEqual((self.published - self.bad, self.bad), (verdict.stored, verdict.dead))

    def test_mutant_without_offsets_in_the_database_is_detected(self):
        verdict = self.kill_and_kill(MUTANTS_KILLS, mutants=("no_fence", "trusts_kafkas_offsets"))
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))


class TestKillsSqlite(Kills, KillsCase):
    database = "sqlite"


class TestKillsPostgresql(Kills, KillsCase):
    database = "postgresql"


class SinkKillsCase(SinkCase, KillsCase):
    table = "copies"

    # Rule 24
    def test_each_message_is_one_row_even_if_workers_are_killed(self):
        super().test_each_message_is_one_row_even_if_workers_are_killed()
        self.assert_states()


class TestSinkKillsSqlite(SinkKillsCase, Kills):
    database = "sqlite"


class TestSinkKillsPostgresql(SinkKillsCase, Kills):
    database = "postgresql"
