# SPDX-License-Identifier: Apache-2.0
"""The persister with the driver ``prometheus`` and a real Prometheus, each of which is killed: the samples are exactly
those sent. For each guarantee, a mutant without it must fail."""

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

import sqlalchemy as sa

from monasca_common.kafka.processor.dead_letters import ERROR_TEXT
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.persister.persister_case import (
    NO_ALARMS,
    PARTITIONS,
    QUICK_SESSION_SECONDS,
    PersisterCase,
)
from monasca_common.tests.functional.persister.persister_mutants import BEFORE_SAMPLES
from monasca_common.tests.functional.processes import attach_file
from monasca_common.tests.functional.prometheus_server import MISSING, PrometheusServer, samples_of
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.persister import envelopes

MESSAGES = 200
CRASH = "storage.before_commit=kill@3"
_METRIC = "U__cpu_2e_percent"
_DISK = "size=40m"


def accepts_late_samples(window):
    """Return a configuration with this ``out_of_order_time_window``."""
    return {"storage": {"tsdb": {"out_of_order_time_window": window}}}


class PrometheusDriverCase(PersisterCase):
    """``window``: the one in the URL. ``receiver_window``: the one of Prometheus."""

    database = "prometheus"
    session_seconds = QUICK_SESSION_SECONDS
    window = receiver_window = "1h"
    spacing_ms = 1  # between two messages

    def setUp(self):
        if MISSING:
            self.skipTest(MISSING)
        super().setUp()

    def prepare_database(self):
        configuration = accepts_late_samples(self.receiver_window)
        self.receiver = self.useFixture(PrometheusServer(configuration, data=self.data_folder()))
        attach_file(self, "prometheus", self.receiver.log)
        self.positions = f"sqlite:///{self.folder}/positions.sqlite"
        url = f"prometheus://127.0.0.1:{self.receiver.port}/api/v1/write?window={self.window}"
        open_storage(StorageSettings("prometheus", url, positions_connection=self.positions)).upgrade()
        self.engine = sa.create_engine(self.positions, poolclass=sa.pool.NullPool)
        return url

    def data_folder(self):
        return None

    def start(self, **facts):
        positions = f"[database]\npositions_connection = {self.positions}"
        return super().start(others=f"{NO_ALARMS}\n{positions}", **facts)

    def metric(self, number, **facts):
        # A group has no order between partitions, so each has its own series.
        time_ms = self.base_ms + number * (self.spacing_ms - 1)
        return envelopes.metric(number, host=self.host(number), time_ms=time_ms)

    def host(self, number):
        return f"h{number % PARTITIONS}"

    def sample(self, number):
        labels = {"__name__": _METRIC, "host": self.host(number), "region": "r", "tenant": "t"}
        return tuple(labels.items()), self.base_ms + number * self.spacing_ms, float(number)

    def samples(self):
        return samples_of(self.receiver.url, f'{{__name__="{_METRIC}"}}')

    def rows(self):
        return [(time_ms - self.base_ms) // self.spacing_ms for _, time_ms, _ in self.samples().elements()]

    def dead_letters(self):
        return [
            (int(json.loads(message.value())["metric"]["value"]), dict(message.headers())[ERROR_TEXT].decode(), None)
            for message in read_topic(self.cluster, self.dlq)
        ]

    def handled(self):
        """Return the number of messages below the stored offsets."""
        with self.engine.connect() as connection:
            return connection.execute(sa.text('SELECT coalesce(sum("next"), 0) FROM kafka_offset')).scalar()

    def wait_until_all_are_handled(self):
        self.wait_until(lambda: self.handled() == len(self.outcomes), lambda: f"{self.handled()} are handled")

    @each_once()
    def assert_the_samples_are_those_sent(self):
        sent = {self.sample(number): 1 for number in self.outcomes}
        found = dict(self.samples())
        self.assertEqual((set(), set()), (sent.keys() - found.keys(), found.keys() - sent.keys()))
        self.assertEqual([], self.dead_letters())

    def crash(self, *mutants, at=CRASH):
        """Kill a worker between the acknowledgement of samples and the storage of their offset. Return the process."""
        self.publish(range(MESSAGES))
        persister = self.start(fail_points=at, mutants=mutants)
        self.wait_until(lambda: persister.worker().get("restarts"), what="the crash")
        self.wait_until_all_are_handled()
        self.assertEqual(1, persister.worker()["restarts"])
        return persister


class KilledPersisterTest(PrometheusDriverCase):
    def test_samples_that_are_sent_again_are_stored_once(self):
        persister = self.crash()
        self.assert_the_samples_are_those_sent()
        self.assert_ends_in_order(persister)

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_stores_offsets_before_samples_loses_samples(self):
        self.crash("stores_offsets_before_samples", at=f"{BEFORE_SAMPLES}=kill@3")
        self.assertNotEqual(frozenset(), self.verdict().lost)


class RefusedRepeatsTest(PrometheusDriverCase):
    """The batches have newer samples than the window, so Prometheus refuses repeats of the other samples."""

    window = receiver_window = "1m"
    spacing_ms = 10_000

    def test_refused_repeats_are_counted_and_are_not_dead_letters(self):
        persister = self.crash()
        self.assert_the_samples_are_those_sent()
        self.wait_until(lambda: persister.counter("rows_total", outcome="repeated"), what="the count")
        self.assertEqual(0, persister.counter("rows_total", outcome="conflicting"))
        self.assert_ends_in_order(persister)

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_looks_up_no_refused_samples_has_dead_letters(self):
        self.publish(range(MESSAGES))
        self.start(fail_points=CRASH, mutants=("looks_up_no_refused_samples",))
        self.wait_until(self.dead_letters, what="a dead letter")


class KilledReceiverTest(PrometheusDriverCase):
    def kill_the_receiver_repeatedly(self, *mutants):
        persister = self.start(fail_points="storage.before_write=sleep:0.05", mutants=mutants)
        for turn in range(3):
            first = turn * MESSAGES
            self.publish(range(first, first + MESSAGES // 2))
            self.wait_until(lambda: self.handled() > first, what="a stored sample")  # noqa: B023
            self.receiver.kill()
            self.publish(range(first + MESSAGES // 2, first + MESSAGES))
            self.wait_until(lambda: self.has_met_the_outage(persister), what="a failed write")
            self.receiver.start()
        self.wait_until_all_are_handled()
        return persister

    def has_met_the_outage(self, persister):
        return persister.worker().get("state") == "waiting for the database" or self.handled() == len(self.outcomes)

    def test_samples_that_are_sent_while_the_receiver_is_killed_are_stored(self):
        persister = self.kill_the_receiver_repeatedly()
        self.assert_the_samples_are_those_sent()
        self.assert_ends_in_order(persister)

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_takes_an_error_for_an_acknowledgement_loses_samples(self):
        self.kill_the_receiver_repeatedly("takes_an_error_for_an_acknowledgement")
        self.assertNotEqual(frozenset(), self.verdict().lost)


@periodic("long outage; the normal run contains KilledReceiverTest")
class FullDiskTest(PrometheusDriverCase):
    def data_folder(self):
        self.disk = Path(tempfile.mkdtemp())
        self.addCleanup(os.rmdir, self.disk)
        command = ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(self.disk)]
        mount = subprocess.run(command, capture_output=True, text=True)
        if mount.returncode:
            self.skipTest(f"a small disk cannot be mounted: {mount.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
        return self.disk / "data"

    def host(self, number):
        return f"h{number % self.series}"

    def fill_the_disk(self, reason):
        """Fill it while samples arrive, and empty it when the persister waits for this reason."""
        self.publish(range(MESSAGES))
        persister = self.start()
        self.wait_until_all_are_handled()
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        self.publish(range(MESSAGES, 4 * MESSAGES))
        self.wait_until(lambda: reason in persister.worker().get("reason", ""), persister.worker)
        filler.unlink()

    def test_a_full_disk_of_the_receiver_loses_no_samples(self):
        self.series = 4 * MESSAGES  # so new series are created while the disk is full
        self.fill_the_disk("no space left")
        self.wait_until_all_are_handled()
        self.assert_the_samples_are_those_sent()
        self.receiver.kill()
        self.receiver.start()
        self.assert_the_samples_are_those_sent()

    def test_a_receiver_that_hangs_with_a_full_disk_loses_no_samples_when_it_is_restarted(self):
        self.series = PARTITIONS  # Prometheus 2.42 hangs if it cannot write the samples of a series to a new file
        self.fill_the_disk("does not respond")
        self.receiver.kill()
        self.receiver.start()
        self.wait_until_all_are_handled()
        self.assert_the_samples_are_those_sent()


class SmallWindowTest(PrometheusDriverCase):
    receiver_window = "10m"

    def test_the_persister_does_not_start_until_the_window_is_large_enough(self):
        self.publish(range(MESSAGES))
        persister = self.start()
        self.assertEqual(1, persister.wait())
        self.assertIn("out_of_order_time_window = 10m, so it would refuse", persister.log.read_text())
        self.assertIn("set it to at least 3600s, or lower window in connection", persister.log.read_text())
        self.assertEqual(0, self.samples().total())
        self.receiver.configure(accepts_late_samples("1h"))
        self.receiver.reload()
        persister = self.start(name="again")
        self.wait_until_all_are_handled()
        self.assert_the_samples_are_those_sent()
        self.assert_ends_in_order(persister)

    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_that_checks_no_window_starts(self):
        self.publish(range(MESSAGES))
        self.start(mutants=("checks_no_window",))
        self.wait_until_all_are_handled()
