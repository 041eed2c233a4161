# SPDX-License-Identifier: Apache-2.0
"""Interrupting commands whose broker never responds."""

import functools
import os
import signal
import socket
import threading
import time
import weakref

import fixtures

from monasca_common.tests.unit.cli.command_case import CommandCase

_COMMANDS = (
    *("topic list", "topic show x", "topic sample x", "topic create x --partitions 1 --execute"),
    *("lag list", "lag show --group g"),
    *("offsets show --group g --topic x", "offsets reset --group g --topic x --to-latest --execute"),
    *("durability check", "audit show", "mirror verify"),
)
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[mirror]
topics = x
[mirror_source]
bootstrap_servers = {servers}
[mirror_target]
bootstrap_servers = {servers},127.0.0.1:1
"""
_SERVICE = """\
[kafka]
driver = memory
bootstrap_servers = memory:1
[database]
connection = sqlite:////nowhere/monasca.sqlite
"""
_CHECKED = "monasca_common.cli.service_command.check_at_start"
_FAR_SECONDS = 30.0
_ASKED = "monasca_common.kafka.transport.admin.Admin.partition_counts"


def _returned(signum, *_, **__):
    """Behave like a client whose call returns despite the signal."""
    try:
        signal.raise_signal(signum)
    except KeyboardInterrupt as interrupt:
        raise SystemError("returned a result with an exception set") from interrupt


def _discarded(signum, *_, **__):
    """Send the signal within a callback of a weak reference, in which Python discards the handler's exception."""
    dies = threading.Event()
    called = weakref.ref(dies, lambda _: signal.raise_signal(signum))
    del dies
    threading.Event().wait(_FAR_SECONDS)
    return {"called": called}


class InterruptedTest(CommandCase):
    command = ()

    def interrupted(self, line, signum):
        """Send the signal after the command has reached its broker. Return its exit status, and whether it reports an
        error."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)  # not earlier: the next broker could get its port
        text = _CONFIGURATION.format(servers=f"127.0.0.1:{listener.getsockname()[1]}")
        before, ended = signal.getsignal(signal.SIGTERM), threading.Event()

        def interrupt():
            connections = []
            # The first connection can come from another client, before the command has started.
            while not connections or signal.getsignal(signal.SIGTERM) is before:
                connections.append(listener.accept()[0])
            os.kill(os.getpid(), signum)
            ended.wait()
            for connection in connections:
                connection.close()

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        try:
            status, _, err = self.run_command(*line.split(), text=text)
        finally:
            ended.set()
        thread.join()
        return status, "Traceback" in err or "monasca-common " in err

    def test_ctrl_c_and_sigterm_end_commands_immediately(self):
        before = signal.getsignal(signal.SIGTERM)
        for line in _COMMANDS:
            for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                self.assertEqual((status, False), self.interrupted(line, signum), line)
        self.assertEqual((0, False), self.interrupted("topic tail x", signal.SIGTERM))
        self.assertEqual(before, signal.getsignal(signal.SIGTERM))

    def test_a_client_call_that_ignores_the_signal_keeps_the_status(self):
        text = "[kafka]\nbootstrap_servers = 127.0.0.1:1\n"
        for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with fixtures.MonkeyPatch(_ASKED, functools.partial(_returned, signum)):
                self.assertEqual((status, ""), self.run_command("topic", "list", text=text)[:2])
                self.assertEqual((0, ""), self.run_command("topic", "tail", "x", text=text)[:2])

    def test_a_signal_whose_exception_python_discards_is_not_lost(self):
        text = "[kafka]\nbootstrap_servers = 127.0.0.1:1\n"
        for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with fixtures.MonkeyPatch(_ASKED, functools.partial(_discarded, signum)):
                began = time.monotonic()
                self.assertEqual((status, ""), self.run_command("topic", "list", text=text)[:2])
                self.assertLess(time.monotonic() - began, _FAR_SECONDS)

    def test_commands_for_dead_letters_have_the_same_statuses(self):
        asked = "monasca_common.kafka.KafkaConsumer.partition_count"
        text = (
            "[kafka]\ndriver = memory\nbootstrap_servers = memory:1\n"
            "[database]\nconnection = sqlite:////nowhere/monasca.sqlite\n"
        )
        with fixtures.MonkeyPatch(asked, functools.partial(_returned, signal.SIGTERM)):
            for line in (
                "dlq list --topic x.dlq",
                "dlq show x.dlq/0/0",
                "dlq replay --execute",
                "dlq purge --all --execute",
            ):
                self.assertEqual(143, self.run_command(*line.split(), text=text)[0], line)
        with fixtures.MonkeyPatch(asked, functools.partial(_returned, signal.SIGINT)):
            self.assertEqual(130, self.run_command("dlq", "list", "--topic", "x.dlq", text=text)[0])


class ServiceStartTest(CommandCase):
    """A service that gets a signal before it runs."""

    def test_sigterm_during_the_start_ends_with_0_and_starts_nothing(self):
        lost = []
        signal.signal(signal.SIGTERM, lambda *_: lost.append("SIGTERM"))  # the default would end this process
        with fixtures.MonkeyPatch(_CHECKED, lambda *_: signal.raise_signal(signal.SIGTERM)):
            for line in ("persister", "notification", "lag serve"):
                self.assertEqual((0, ""), self.run_command(*line.split(), text=_SERVICE)[:2], line)
        self.assertEqual([], lost)

    def test_a_sigterm_whose_exception_python_discards_ends_the_start(self):
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the default would end this process
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        with fixtures.MonkeyPatch(_CHECKED, functools.partial(_discarded, signal.SIGTERM)):
            began = time.monotonic()
            self.assertEqual((0, ""), self.run_command("lag", "serve", text=_SERVICE)[:2])
            self.assertLess(time.monotonic() - began, _FAR_SECONDS)

    def test_an_alarm_that_a_service_leaves_does_not_end_the_process(self):
        with (
            fixtures.MonkeyPatch(_CHECKED, lambda *_: None),
            fixtures.MonkeyPatch("monasca_common.persister.service.run", lambda _: signal.alarm(3600)),
        ):
            self.assertEqual(0, self.run_command("persister", text=_SERVICE)[0])
        self.assertEqual(0, signal.alarm(0))
