# SPDX-License-Identifier: Apache-2.0
"""The command ``monasca-common persister`` as an operator runs it."""

import os
import signal
import subprocess
import sys
import time

import sqlalchemy as sa

from monasca_common.kafka import plugins
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.message import Record
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.models import avro
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.tests.checker import ReportedOutcome
from monasca_common.tests.functional.persister.persister_case import (
    NO_ALARMS,
    PARTITIONS,
    QUICK_SESSION_SECONDS,
    SECONDS,
    PersisterCase,
)
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.web import is_ok

_COMMAND = [sys.executable, "-m", "monasca_common.cli.main", "persister"]


class TestStart(PersisterCase):
    """A failed start logs one line and exits with 1."""

    def refused(self, text):
        path = self.folder / "refused.conf"
        path.write_text(text)
        done = subprocess.run(
            [*_COMMAND, "--config-file", str(path)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        self.assertEqual(1, done.returncode, done.stderr)
        expected = [line for line in done.stderr.splitlines() if line.startswith("monasca-common persister:")]
        self.assertEqual(1, len(expected), done.stderr)
        return expected[0]

    def configuration(self, url=None, **changes):
        groups = {
            "kafka": f"bootstrap_servers = {self.servers}",
            "database": f"connection = {url or self.url}",
            **changes,
        }
        return "\n".join(f"[{name}]\n{text}" for name, text in groups.items())

    @periodic("the unit tests refuse the same configuration")
    def test_a_misspelt_option_is_reported(self):
        self.assertIn("'thread'", self.refused(self.configuration(kafka_metrics="thread = 2")))

    @periodic("the unit tests refuse the same configuration")
    def test_missing_brokers_are_reported(self):
        self.assertIn("bootstrap_servers", self.refused(self.configuration(kafka="client_id = x")))

    @periodic("the unit tests refuse the same configuration")
    def test_more_processes_than_sqlite_permits_are_refused(self):
        text = self.refused(self.configuration(kafka_metrics="num_processors = 2"))
        self.assertIn("num_processors in group [kafka_metrics] is 2", text)

    def test_a_database_without_tables_is_refused_with_the_remedy(self):
        text = self.refused(self.configuration(f"sqlite:///{self.folder}/empty.sqlite"))
        self.assertIn("monasca-common db upgrade", text)


class TestRunning(PersisterCase):
    def test_all_four_kinds_are_stored_by_one_process_on_sqlite(self):
        names = {"kafka_logs": "logs", "kafka_events": "events", "kafka_alarm_history": "alarm_history"}
        values = {"logs": envelopes.log, "events": envelopes.event, "alarm_history": envelopes.alarm}
        extra = []
        now_ms = self.base_ms
        for group, table in names.items():
            topic = self.fixture.topic(1)
            self.cluster.create_topic(f"{topic}.dlq", 1)
            extra.append(f"[{group}]\nenabled = true\ntopic = {topic}\ngroup_id = {self.group}-{table}")
            records = [values[table](number, now_ms=now_ms) for number in range(5)]
            self.producer.publish(topic, records).raise_for_undelivered()
        self.publish(range(5))
        persister = self.start(others="\n".join(extra))
        for table in ("measurements", *names.values()):
            self.wait_until(lambda table=table: self.count(table) == 5, what=table)
        self.assertEqual(1, len(self.workers(persister)))
        self.assert_ends_in_order(persister)

    def count(self, table):
        return self.execute_scalar(f"SELECT count(*) FROM {table}")

    def execute_scalar(self, statement):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(statement)).scalar()

    def test_a_stop_under_load_commits_leaves_the_group_and_exits_with_0(self):
        persister = self.start(metrics="stop_timeout_seconds = 60")
        self.wait_until(lambda: persister.worker().get("partitions") == PARTITIONS, what="the assignment")
        for first in range(0, 2000, 100):
            self.publish(range(first, first + 100))
        self.assert_ends_in_order(persister)
        stored = self.execute_scalar("SELECT sum(next) FROM kafka_offset")
        committed = self.cluster.admin.group_offsets(self.group)
        self.assertEqual(stored, sum(committed.values()))
        again = self.start(name="again")
        # The previous persister left the group, so no session must expire.
        self.wait_until(lambda: again.worker().get("partitions") == PARTITIONS, what="the assignment")
        self.wait_for_all()
        self.assert_ends_in_order(again)
        self.assert_clean()

    @periodic("a variant of a stop of the processor; the normal run contains test_a_stop_under_load_commits")
    def test_start_and_stop_log_one_line_each(self):
        self.publish(range(10))
        persister = self.start()
        self.wait_for_all()
        for path in ("/healthz", "/readyz"):
            self.wait_until(lambda path=path: is_ok(persister.url + path), path)
        self.assert_ends_in_order(persister)
        # The test broker has one replica, which causes one warning before the start.
        could_be_lost, start, stop = persister.log.read_text().splitlines()
        self.assertIn("there is one replica", could_be_lost)
        for part in (self.topic, self.group, self.servers, self.url.partition("@")[2] or self.url, persister.url[7:]):
            self.assertIn(part, start)
        self.assertIn("stopped: dead letters 0; restarts 0", stop)

    @periodic("starts all workers twice; TestWorkers of the normal run replaces one")
    def test_sighup_replaces_the_workers(self):
        self.publish(range(100))
        persister = self.start()
        self.wait_for_all()
        (before,) = self.workers(persister)
        persister.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: {each.pid for each in self.workers(persister)} - {before.pid}, what="a new worker")
        self.wait_until(lambda: not before.is_running(), what="the end of the old one")
        self.publish(range(100, 200))
        self.wait_for_all()
        self.assertEqual(0, persister.worker()["restarts"])
        self.assert_ends_in_order(persister)
        self.assert_clean()

    @periodic("a variant of a stop of the processor; the normal run contains test_a_stop_under_load_commits")
    def test_ctrl_c_ends_all_processes(self):
        persister = self.start()
        self.wait_until(lambda: persister.worker().get("state") == "running", what="the start")
        workers = self.workers(persister)
        persister.stop(signal.SIGINT)
        self.wait_until(lambda: not any(each.is_running() for each in workers), what="the end of the workers")

    # Rule 26
    def test_one_percent_poison_is_dead_lettered_and_the_rest_is_stored(self):
        numbers = range(100_000)
        bad = frozenset(range(50, 100_000, 100))
        self.publish(numbers, bad=bad)
        persister = self.start(batch_size=10_000)
        self.wait_for_all(dead=len(bad), seconds=90)
        self.wait_until(lambda: persister.worker()["lag"] == 0, what="the end of the log")
        self.assertEqual(len(bad), persister.counter("dead_letters_total"))
        self.assert_ends_in_order(persister)
        letters = self.dead_letters()
        self.assertEqual(
            {(number, (number % PARTITIONS, number // PARTITIONS)) for number in bad},
            {(number, origin) for number, _, origin in letters},
        )
        self.assertEqual([], [cause for _, cause, _ in letters if not cause])
        verdict = self.verdict()
        verdict.raise_unless_clean()
        self.assertEqual((100_000 - len(bad), len(bad)), (verdict.stored, verdict.dead))

    @periodic("the storage's KeyContract covers it")
    def test_the_greater_version_of_a_key_is_stored_in_either_order(self):
        now_s = self.base_ms // 1000
        older, newer = ({"value": 1, "creation_time": now_s}, {"value": 2, "creation_time": now_s + 1})
        for number, order in enumerate([(older, newer), (newer, older)]):
            for facts in order:
                value = envelopes.metric(number, **{"time_ms": self.base_ms, **facts})
                self.producer.publish(self.topic, [Record(value, partition=0)]).raise_for_undelivered()
        persister = self.start()
        self.wait_until(lambda: persister.counter("rows_total", outcome="conflicting") == 2, what="both conflicts")
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT time, value FROM measurements ORDER BY time")).all()
        self.assertEqual([(self.base_ms, 2.0), (self.base_ms + 1, 2.0)], [tuple(row) for row in rows])
        self.assert_ends_in_order(persister)

    def steady_memory(self, process):
        """Return the memory of the process in bytes, once it has been constant for half a second."""
        seen = [0]

        def is_steady():
            time.sleep(0.5)
            seen.append(process.memory_info().rss)
            return abs(seen[-1] - seen[-2]) < 1_000_000

        self.wait_until(is_steady, what="full buffers")
        return seen[-1]

    @periodic("fills a backlog for a minute")
    def test_memory_is_bounded_while_a_backlog_waits_for_the_database(self):
        self.publish(range(10))
        persister = self.start(batch_size=500, metrics="buffer_bytes = 4194304")
        self.wait_for_all()
        (worker,) = self.workers(persister)
        with self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            value = envelopes.metric(0, time_ms=self.base_ms, host="x" * 200)
            # Not compressed, so that fetched bytes are bytes of memory.
            settings = ProducerSettings(self.connection, linger_ms=5, compression="none")
            with plugins.kafka_producer(settings) as producer:

                def add_to_the_backlog(bulks):
                    for _ in range(bulks):
                        producer.publish(self.topic, [value] * 50_000, timeout=SECONDS).raise_for_undelivered()

                # Ten times the size of the buffers. The allocators determine the size of the process with full buffers.
                add_to_the_backlog(2)
                self.wait_until(lambda: persister.worker()["state"] == "waiting for the database", what="the wait")
                full = self.steady_memory(worker)
                add_to_the_backlog(5)
            grown = worker.memory_info().rss - full
            connection.exec_driver_sql("ROLLBACK")
        self.assertGreater(250_000 * len(value), 90_000_000)
        self.assertLess(grown, 40_000_000)
        persister.kill()


class TestWorkers(PersisterCase):
    database = "postgresql"
    session_seconds = QUICK_SESSION_SECONDS

    def test_only_the_dead_worker_is_replaced(self):
        topic = self.fixture.topic(1)
        self.cluster.create_topic(f"{topic}.dlq", 1)
        events = f"[kafka_events]\nenabled = true\ntopic = {topic}\ngroup_id = {self.group}-events"
        persister = self.start(others=f"{NO_ALARMS}\n{events}")
        running = lambda: [each.get("state") for each in persister.status().values()]  # noqa: E731
        self.wait_until(lambda: running() == ["running", "running"], what="both workers")
        before = {name: worker["pid"] for name, worker in persister.status().items()}
        os.kill(before["metrics-0"], signal.SIGKILL)
        self.wait_until(lambda: persister.worker("metrics-0").get("restarts") == 1, what="the replacement")
        self.publish(range(50))
        self.wait_for_all()
        after = {name: worker["pid"] for name, worker in persister.status().items()}
        self.assertEqual(before["events-0"], after["events-0"])
        self.assertNotEqual(before["metrics-0"], after["metrics-0"])
        self.assert_ends_in_order(persister)

    @periodic("waits between restarts")
    def test_a_worker_that_dies_repeatedly_is_replaced_about_every_five_seconds(self):
        self.publish(range(10))
        persister = self.start(mutants=("dies_at_once",))
        self.wait_until(lambda: persister.worker().get("restarts", 0) >= 2, what="two deaths")
        began, restarts = time.monotonic(), persister.worker()["restarts"]
        time.sleep(2)
        made, seconds = persister.worker()["restarts"] - restarts, time.monotonic() - began
        self.assertLessEqual(made, max(2, seconds), f"{made} replacements in {seconds:.1f} s")
        persister.kill()


class TestFormats(PersisterCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        settings = SchemaRegistrySettings(url=self.registry.url, auto_register=True)
        self.writer = EnvelopeWriter(settings, avro.METRICS, self.topic)

    def publish_in_avro(self, numbers, *, bad=()):
        numbers = list(numbers)
        values = self.writer.values([self.metric(number) for number in numbers])
        records = [
            Record(value[:9] + b" %d" % number if number in bad else value, partition=number % PARTITIONS)
            for number, value in zip(numbers, values, strict=True)
        ]
        self.producer.publish(self.topic, records, timeout=SECONDS).raise_for_undelivered()
        self.outcomes |= dict.fromkeys(numbers, ReportedOutcome.ACKED)

    def test_an_unavailable_registry_delays_rows_but_rejects_none(self):
        self.publish(range(50))
        self.publish_in_avro(range(50, 100), bad={60})
        self.publish(range(100, 150))
        self.registry.stop()
        persister = self.start(others=f"{NO_ALARMS}\n[schema_registry]\nurl = {self.registry.url}\ntimeout_seconds = 2")
        self.wait_until(
            lambda: persister.worker().get("state") == "waiting for the schema registry", what="the state of the wait"
        )
        self.assertEqual([], self.dead_letters())

        self.registry.start()
        self.wait_until(lambda: len(self.rows()) + len(self.dead_letters()) == 150, what="all rows")
        ((number, reason, _),) = self.dead_letters()
        self.assertEqual(60, number)
        self.assertIn("schema 1", reason)
        self.assert_ends_in_order(persister)
        self.assert_clean()
