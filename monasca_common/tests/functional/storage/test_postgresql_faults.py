# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is killed, frozen, locked, full, or disconnected at COMMIT: nothing is lost or duplicated, and only
storage errors are raised."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fixtures import MonkeyPatch

from monasca_common.kafka import failpoints
from monasca_common.storage.base import Kind, Written
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase, batch
from monasca_common.tests.periodic import periodic
from monasca_common.tests.postgresql_server import _TEMPORARY, PostgresqlServer
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


class CuttingProxy:
    def __init__(self, server):
        self._server = server
        self._word = None
        self._cuts_answer = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, word, *, answer):
        """Close the next connection on which a client sends ``word``: after the server has responded, or before
        the server receives it."""
        self._cuts_answer = answer
        self._word = word

    def close(self):
        for each in (self._listener, *self._open):
            _shut(each)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += (client, server)
                answered = threading.Event()  # while set, the next response is not forwarded
                threading.Thread(target=self._carry_questions, args=(client, server, answered), daemon=True).start()
                threading.Thread(target=self._carry_answers, args=(client, server, answered), daemon=True).start()

    def _carry_questions(self, client, server, answered):
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._word is not None and self._word in data:
                    self._word = None
                    if not self._cuts_answer:
                        break
                    answered.set()
                server.sendall(data)
        _shut(client)
        _shut(server)

    def _carry_answers(self, client, server, answered):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if answered.is_set():
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


SIZE = 200
BATCHES = 100
BATCHES_BETWEEN_KILLS = 10
KILLS = 3
TIMEOUT_SECONDS = 2.0
BUSY_SECONDS = 30.0  # extra time that a busy machine may need beyond the time-out


def write_until_stored(database, batches, *, stop=lambda: False):
    """Store each batch like a persister, and return how often the database was unavailable."""
    failures = 0
    writer = None
    with contextlib.ExitStack() as opened:
        for its_claim, rows in batches:
            while not stop():
                try:
                    if writer is None:
                        writer = opened.enter_context(database.storage().open_writer())
                    writer.write(its_claim, rows)
                    break
                except StorageUnavailable:
                    failures += 1
                    time.sleep(0.05)
    return failures


class OwnServerTestCase(Waiting, PostgresqlTestCase):
    """``self.server`` belongs to the test, which can kill, freeze and fill it."""

    settings: Mapping[str, str] = MappingProxyType({})
    write_timeout_seconds = 30.0

    def setUp(self):
        self.server = None
        super().setUp()

    def new_url(self):
        if self.server is None:
            self.server = self.enterContext(PostgresqlServer(settings=self.settings))
        return self.server.create_database()

    def empty_database(self, **changes):
        return super().empty_database(**{"write_timeout_seconds": self.write_timeout_seconds, **changes})

    def store(self, writer, its_claim, rows):
        """Write, and repeat the write while the database is unavailable, because a busy one can exceed a time-out.
        Return the result."""
        message = []

        def stored():
            try:
                message.append(writer.write(its_claim, rows))
            except StorageUnavailable:
                return False
            return True

        self.wait_until(stored, "a write")
        return message[0]


class KilledServerTest(OwnServerTestCase):
    # Rule 25
    def test_a_transaction_of_a_killed_server_is_rolled_back(self):
        writer = self.database.writer()
        its_claim, rows = batch(0, SIZE)
        killed = []

        def kill(point):
            if point == "storage.in_transaction" and not killed:
                killed.append(point)
                self.server.kill()

        self.useFixture(MonkeyPatch("monasca_common.storage.sql.writer.fail_point", kill))
        self.assertRaises(StorageUnavailable, writer.write, its_claim, rows)
        self.assertEqual(1, len(killed))
        self.assertRaises(StorageUnavailable, writer.write, its_claim, rows)
        self.server.restart()
        self.assertEqual([], self.database.rows(Kind.METRICS))
        self.assertEqual(Written(stored=SIZE), writer.write(its_claim, rows))

    @periodic("repeats the kill under load")
    def test_kills_under_load_neither_lose_nor_duplicate_rows(self):
        enough, given_up = threading.Event(), threading.Event()
        begun, outcome = [], []

        def batches():
            while not enough.is_set():
                begun.append(batch(len(begun), SIZE))
                yield begun[-1]

        def load():
            outcome.append(write_until_stored(self.database, batches(), stop=given_up.is_set))

        def wait_for_batches():
            wanted = len(begun) + BATCHES_BETWEEN_KILLS
            self.wait_until(lambda: len(begun) >= wanted, "batches")

        with failpoints.armed("storage.in_transaction", "sleep:0.02"):  # long enough to be killed in between
            loading = threading.Thread(target=load)
            loading.start()
            for clean_up in (loading.join, enough.set, given_up.set):  # the last one can equal the first one
                self.addCleanup(clean_up)
            for _ in range(KILLS):
                wait_for_batches()
                self.server.kill()
                self.server.restart()
            wait_for_batches()
            enough.set()
            loading.join()
        self.assertGreaterEqual(outcome[0], KILLS)
        values = [each.value for each in self.database.rows(Kind.METRICS)]
        with each_once():
            self.assertEqual(list(map(float, range(len(begun) * SIZE))), sorted(values))


@periodic("long outage; the normal run contains CutCommitTest and KilledServerTest")
class FrozenServerTest(OwnServerTestCase):
    write_timeout_seconds = TIMEOUT_SECONDS

    def test_a_frozen_server_delays_a_write_by_at_most_the_time_out(self):
        writer = self.database.writer()
        self.store(writer, *batch(0, SIZE))
        self.server.freeze()
        try:
            for _ in range(2):  # on the existing connection, and on a new one
                began = time.monotonic()
                self.assertRaises(StorageUnavailable, writer.write, *batch(1, SIZE))
                self.assertLess(time.monotonic() - began, TIMEOUT_SECONDS + 1.0 + BUSY_SECONDS)
        finally:
            self.server.thaw()
        write_until_stored(self.database, [batch(1, SIZE)])
        self.assertEqual(2 * SIZE, len(self.database.rows(Kind.METRICS)))


class CutCommitTest(PostgresqlTestCase):
    """A proxy between the writer and the server closes the connection at COMMIT."""

    def setUp(self):
        super().setUp()
        url = self.database.settings.connection
        host, _, port = url.partition("@")[2].partition("/")[0].partition(":")
        self.proxy = CuttingProxy((host, int(port)))
        self.addCleanup(self.proxy.close)
        behind = SqlDatabase(
            self.addCleanup, StorageSettings("postgresql", url.replace(f":{port}/", f":{self.proxy.port}/"))
        )
        self.writer = behind.writer()
        self.writer.write(*batch(0, SIZE))

    # Rule 25
    def test_a_commit_without_its_response_is_unknown_and_the_repeated_call_finds_the_rows(self):
        self.proxy.cut(b"COMMIT", answer=True)
        self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.assertEqual(2 * SIZE, len(self.database.rows(Kind.METRICS)))
        self.assertEqual(Written(skipped=SIZE), self.writer.write(*batch(1, SIZE)))
        self.assertEqual(Written(stored=SIZE), self.writer.write(*batch(2, SIZE)))

    def test_an_undelivered_commit_is_unknown_and_the_repeated_call_stores_the_rows(self):
        self.proxy.cut(b"COMMIT", answer=False)
        self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.assertEqual(Written(stored=SIZE), self.writer.write(*batch(1, SIZE)))
        self.assertEqual(2 * SIZE, len(self.database.rows(Kind.METRICS)))

    # Rule 25
    def test_series_of_an_unknown_commit_are_created_again(self):
        self.proxy.cut(b"COMMIT", answer=False)
        self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.writer.write(*batch(1, SIZE))
        self.assertNotIn(None, {each.series.name for each in self.database.rows(Kind.METRICS)})


@periodic("long outage; the normal run contains CutCommitTest and KilledServerTest")
class BusyServerTest(OwnServerTestCase):
    write_timeout_seconds = TIMEOUT_SECONDS
    settings = MappingProxyType({"superuser_reserved_connections": "0", "max_connections": "12", "autovacuum": "off"})

    def setUp(self):
        super().setUp()
        self.writer = self.database.writer()
        self.store(self.writer, *batch(0, SIZE))

    def check_that_it_recovers(self):
        self.store(self.writer, *batch(1, SIZE))
        self.assertEqual(2 * SIZE, len(self.database.rows(Kind.METRICS)))

    def test_a_locked_table_is_unavailable_until_it_is_released(self):
        other = self.session()
        with other.transaction():
            other.execute("LOCK TABLE measurements IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            error = self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
            self.assertLess(time.monotonic() - began, TIMEOUT_SECONDS + BUSY_SECONDS)
        self.assertIn("lock timeout", str(error))
        self.check_that_it_recovers()

    def test_an_offset_locked_by_another_writer_is_unavailable_until_it_is_released(self):
        other = self.session()
        with other.transaction():
            other.execute("SELECT next FROM kafka_offset FOR UPDATE")
            self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.check_that_it_recovers()

    def test_a_session_ended_by_an_operator_is_opened_again(self):
        self.session().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'monasca-common writer'"
        )
        self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.check_that_it_recovers()

    def test_a_read_only_database_is_unavailable(self):
        name = self.database.settings.connection.rpartition("/")[2]
        self.server.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        self.writer.close()
        self.writer = self.database.writer()
        error = self.assertRaises(StorageUnavailable, self.writer.write, *batch(1, SIZE))
        self.assertIn("read-only", str(error))
        self.server.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        self.check_that_it_recovers()

    def test_a_server_without_a_free_connection_is_unavailable(self):
        sessions = []
        with self.assertRaisesRegex(Exception, "too many"):
            while True:
                sessions.append(self.session())
        error = self.assertRaises(StorageUnavailable, self.database.writer)
        self.assertIn("too many", str(error))
        for session in sessions:
            session.close()
        self.check_that_it_recovers()


class StatusTest(PostgresqlTestCase):
    def test_a_locked_table_does_not_delay_the_status(self):
        self.database = self.empty_database(read_timeout_seconds=TIMEOUT_SECONDS)
        self.database.prepare()
        other = self.session()
        with other.transaction():
            other.execute("LOCK TABLE kafka_offset IN ACCESS EXCLUSIVE MODE")
            error = self.assertRaises(StorageUnavailable, self.database.storage().status)
            self.assertIn("timeout", str(error))
        self.assertTrue(self.database.storage().status().usable)


@periodic("long outage; the normal run contains CutCommitTest and KilledServerTest")
class FullDiskTest(OwnServerTestCase):
    """Partitions are in a tablespace of a few megabytes; the server's write-ahead log is elsewhere."""

    def setUp(self):
        super().setUp()
        data = os.stat(self.server.folder)
        folder = tempfile.mkdtemp(dir=self.server.folder)
        options = f"size=2m,mode=700,uid={data.st_uid},gid={data.st_gid}"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False)
        if mounted.returncode != 0:
            self.skipTest("a file system of a few megabytes needs root")
        self.addCleanup(os.rmdir, folder)
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        self.folder = folder
        name = self.database.settings.connection.rpartition("/")[2]
        self.server.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        self.server.execute(f'ALTER DATABASE "{name}" SET default_tablespace = small')

    def test_a_full_disk_is_unavailable_until_space_is_free(self):
        writer = self.database.writer()
        number = 0
        with self.assertRaisesRegex(StorageUnavailable, "No space left on device|53100"):
            for number in range(BATCHES):
                writer.write(*batch(number, SIZE))
        self.assertRaises(StorageUnavailable, writer.write, *batch(number, SIZE))
        subprocess.run(["mount", "-o", "remount,size=200m", self.folder], check=True)
        for later in range(number, BATCHES):
            self.assertEqual(Written(stored=SIZE), writer.write(*batch(later, SIZE)))
        values = [each.value for each in self.database.rows(Kind.METRICS)]
        with each_once():
            self.assertEqual(list(map(float, range(BATCHES * SIZE))), sorted(values))


class AbsentServerTest(OwnServerTestCase):
    def test_a_missing_server_is_unavailable_and_the_error_shows_no_password(self):
        self.server.kill()
        url = self.database.settings.connection.replace("monasca@", "monasca:open-sesame@")
        database = SqlDatabase(self.addCleanup, StorageSettings("postgresql", url))
        for call in (database.writer, database.storage().status, database.storage().upgrade):
            error = self.assertRaises(StorageUnavailable, call)
            self.assertNotIn("sesame", str(error))
        self.server.restart()
        database.writer()


@periodic("tests the test database itself")
class NothingLeftTest(PostgresqlTestCase):
    def test_a_server_ends_with_the_process_that_started_it(self):
        self.assert_ends_with_its_owner("")

    def test_a_frozen_server_ends_with_the_process_that_started_it_sessions_included(self):
        self.assert_ends_with_its_owner("server.freeze()\n")

    def assert_ends_with_its_owner(self, before_the_end):
        program = (
            "import os, signal\n"
            "from monasca_common.tests.postgresql_server import PostgresqlServer\n"
            "server = PostgresqlServer(); server.start()\n"
            f"{before_the_end}"
            "print(server.pid, *(each.pid for each in server._sessions()), flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        environment = {**os.environ, "TMPDIR": _TEMPORARY}
        done = subprocess.run(
            [os.sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=200,
        )
        pids = [int(pid) for pid in done.stdout.split()]
        self.assertGreater(len(pids), 3)  # the checkpointer, the writers, …
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual([], left)

    def test_a_data_folder_keeps_the_databases_for_the_next_start(self):
        folder = Path(tempfile.mkdtemp(dir=_TEMPORARY))
        self.addCleanup(shutil.rmtree, folder)
        folder.chmod(0o755)
        for statement in ("CREATE DATABASE kept", "DROP DATABASE kept"):
            with PostgresqlServer(data_dir=folder / "data") as server:
                server.execute(statement)
        self.assertTrue((folder / "data").exists())

    def test_two_servers_run_concurrently(self):
        first, second = (self.enterContext(PostgresqlServer()) for _ in range(2))
        self.assertNotEqual(first.url(), second.url())
        first.kill()
        second.create_database()


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
