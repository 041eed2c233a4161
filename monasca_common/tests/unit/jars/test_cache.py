# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.jars import CACHE_VARIABLE, JarError, fetched, read_digests
from monasca_common.tests.served import http_server, serve

RIGHT, TRUNCATED, RESET, UNAVAILABLE, EMPTY, NOT_FOUND = "right", "truncated", "reset", "503", "empty", "404"
NAMES = ("one", "two", "three")
_FETCH = "import sys, pathlib; from monasca_common.jars import fetched; print(fetched(pathlib.Path(sys.argv[1])))"


class Registry(fixtures.Fixture):
    """A stand-in for a Maven repository. ``jar_list``: the file that pins its jars. ``faults``: the next responses by
    the name of the jar, oldest first. ``requests``: (name, Authorization) of each request. ``held``: answers wait for
    this event."""

    def __init__(self, *names):
        self._names = names

    def _setUp(self):
        self.contents = {f"{name}-1.0.jar": f"content of {name}".encode() * 100 for name in self._names}
        self.faults = defaultdict(list)
        self.requests = []
        self.held, self.asked = threading.Event(), threading.Event()
        self.held.set()
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.jar_list = folder / "a-list.txt"
        self.jar_list.write_text(
            "".join(
                f"{hashlib.sha256(self.contents[f'{name}-1.0.jar']).hexdigest()}  org.example:{name}:1.0\n"
                for name in self._names
            )
        )
        self.environ = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        server = http_server(self.answer)
        self.url = f"http://127.0.0.1:{server.server_port}/maven2"
        self.environ["MONASCA_COMMON_MAVEN_REPOSITORY"] = self.url
        self.addCleanup(serve(server))
        self.addCleanup(self.held.set)

    @property
    def asked_for(self):
        return [name for name, _ in self.requests]

    def answer(self, handler):
        name = handler.path.rpartition("/")[2]
        self.requests.append((name, handler.headers["Authorization"]))
        self.asked.set()
        self.held.wait()
        content = self.contents[name]
        fault = self.faults[name].pop(0) if self.faults[name] else RIGHT
        if fault in (UNAVAILABLE, NOT_FOUND):
            handler.send_error(int(fault))
            return
        handler.send_response(200)
        handler.send_header("Content-Length", "0" if fault == EMPTY else str(len(content)))
        handler.end_headers()
        if fault == RIGHT:
            handler.wfile.write(content)
        elif fault == TRUNCATED:
            handler.wfile.write(content[:-1])
        elif fault == RESET:
            handler.wfile.write(content[:10])
            handler.wfile.flush()
            # Closing such a socket sends a reset.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()


class FetchCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(Registry(*NAMES))
        self.environ = self.registry.environ
        self.folder = Path(self.environ["XDG_CACHE_HOME"], "monasca-common", "a-list")
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.repository._WAITS_SECONDS", (0.0, 0.0, 0.0)))

    def fetched(self):
        return fetched(self.registry.jar_list, self.environ)

    def refusal(self):
        return str(self.assertRaises(JarError, self.fetched))


class TestFaults(FetchCase):
    def test_a_fetch_survives_each_fault_of_each_file_in_turn(self):
        for name in self.registry.contents:
            for fault in (TRUNCATED, RESET, UNAVAILABLE, EMPTY):
                self.environ[CACHE_VARIABLE] = self.useFixture(fixtures.TempDir()).path
                self.registry.faults[name] = [fault]

                folder = self.fetched()

                found = {jar.name: jar.read_bytes() for jar in folder.glob("*")}
                self.assertEqual(self.registry.contents, found, (name, fault))

    def test_four_wrong_responses_end_in_one_line_with_the_file_the_url_and_the_remedy(self):
        reasons = {TRUNCATED: "the response ended after", RESET: "reset", UNAVAILABLE: "503", EMPTY: "0 bytes"}
        for name in self.registry.contents:
            for fault, reason in reasons.items():
                self.registry.faults[name] = [fault] * 4
                self.registry.requests.clear()

                refusal = self.refusal()

                url = f"{self.registry.url}/org/example/{name.removesuffix('-1.0.jar')}/1.0/{name}"
                for part in (name, url, reason, "MONASCA_COMMON_MAVEN_REPOSITORY", "jars fetch --to", CACHE_VARIABLE):
                    self.assertIn(part, refusal, (name, fault))
                self.assertEqual(1, len(refusal.splitlines()))
                self.assertEqual(4, self.registry.asked_for.count(name), (name, fault))
                self.assertFalse(self.folder.exists())

    def test_a_file_that_the_repository_does_not_have_is_not_requested_again(self):
        self.registry.faults["one-1.0.jar"] = [NOT_FOUND]

        self.assertIn("404", self.refusal())
        self.assertEqual(["one-1.0.jar"], self.registry.asked_for)

    def test_content_that_differs_from_its_pinned_digest_is_not_kept(self):
        self.registry.contents["two-1.0.jar"] = b"evil"

        refusal = self.refusal()

        self.assertIn(read_digests(self.registry.jar_list)["org.example:two:1.0"], refusal)
        self.assertEqual([], list(self.folder.parent.rglob("two-1.0.jar")))

    def test_a_later_fetch_resumes_a_failed_one(self):
        self.registry.faults["two-1.0.jar"] = [EMPTY] * 4
        self.refusal()
        self.registry.requests.clear()

        self.fetched()

        self.assertEqual(["two-1.0.jar", "three-1.0.jar"], self.registry.asked_for)
        self.assertEqual(sorted(self.registry.contents), sorted(file.name for file in self.folder.iterdir()))

    def test_the_leftovers_of_a_killed_fetch_are_compared_and_removed(self):
        partial = self.folder.with_name("a-list.partial")
        partial.mkdir(parents=True)
        (partial / "one-1.0.jar").write_bytes(b"half")
        (partial / "three-1.0.jar.part").touch()

        folder = self.fetched()

        self.assertEqual(self.registry.contents, {file.name: file.read_bytes() for file in folder.iterdir()})
        self.assertFalse(partial.exists())


class TestCache(FetchCase):
    def test_jars_are_fetched_once(self):
        self.assertEqual([self.folder, self.folder], [self.fetched(), self.fetched()])
        self.assertEqual([f"{name}-1.0.jar" for name in NAMES], self.registry.asked_for)

    def test_two_processes_with_an_empty_cache_fetch_once(self):
        command = [sys.executable, "-c", _FETCH, str(self.registry.jar_list)]
        options = {"env": {**os.environ, **self.environ}, "text": True, "stdout": subprocess.PIPE}
        self.registry.held.clear()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, **options) as first:
            self.assertTrue(self.registry.asked.wait(60))
            with subprocess.Popen(command, stderr=subprocess.PIPE, **options) as second:
                self.assertIn("another process is fetching a-list", second.stderr.readline())
                self.registry.held.set()
                found = [process.communicate(timeout=60)[0].strip() for process in (first, second)]

        self.assertEqual([str(self.folder)] * 2, found)
        self.assertEqual([f"{name}-1.0.jar" for name in NAMES], self.registry.asked_for)

    def test_a_lock_that_is_never_released_causes_an_error_with_its_name(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.cache._LOCK_SECONDS", 0.0))
        self.useFixture(fixtures.MonkeyPatch("monasca_common.jars.cache._LOCK_EVERY_SECONDS", 0.0))
        with mock.patch("monasca_common.jars.cache._try_lock", return_value=False):
            self.assertIn("a-list.lock", self.refusal())

    def test_changed_added_and_missing_jars_are_refused(self):
        self.fetched()
        (self.folder / "one-1.0.jar").write_bytes(b"changed")
        (self.folder / "two-1.0.jar").unlink()
        (self.folder / "added.jar").touch()

        refusal = self.refusal()

        for part in (
            "one-1.0.jar has the SHA-256 digest",
            "two-1.0.jar is missing",
            "added.jar is not one of the pinned jars",
            f"remove {self.folder}",
        ):
            self.assertIn(part, refusal)

    def test_a_folder_of_the_user_replaces_the_cache(self):
        own = self.useFixture(fixtures.TempDir()).path
        self.environ[CACHE_VARIABLE] = own
        self.assertEqual(Path(own, "a-list"), self.fetched())

    def test_without_xdg_the_cache_is_in_the_home_folder(self):
        del self.environ["XDG_CACHE_HOME"]
        self.assertEqual(Path(self.environ["HOME"], ".cache", "monasca-common", "a-list"), self.fetched())

    def test_a_full_disk_is_named_instead_of_the_repository_and_the_jar_is_not_requested_again(self):
        partial = self.folder.with_name("a-list.partial")
        partial.mkdir(parents=True)
        (partial / "one-1.0.jar").symlink_to("/dev/full")

        refusal = self.refusal()

        for part in ("No space left on device", str(self.folder.parent), CACHE_VARIABLE):
            self.assertIn(part, refusal)
        self.assertNotIn(self.registry.url, refusal)
        self.assertEqual(["one-1.0.jar"], self.registry.asked_for)

    def test_a_jar_that_cannot_be_read_is_named_with_the_remedy(self):
        self.fetched()
        (self.folder / "one-1.0.jar").unlink()
        (self.folder / "one-1.0.jar").mkdir()

        refusal = self.refusal()

        for part in (str(self.folder / "one-1.0.jar"), CACHE_VARIABLE):
            self.assertIn(part, refusal)

    def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(self):
        self.environ[CACHE_VARIABLE] = "/proc/none"
        refusal = self.refusal()
        for part in ("/proc/none", CACHE_VARIABLE):
            self.assertIn(part, refusal)
