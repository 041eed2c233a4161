# SPDX-License-Identifier: Apache-2.0
"""Commands whose broker never answers, interrupted."""

import functools
import os
import signal
import socket
import threading

import fixtures

from monasca_common.tests.unit.cli.command_case import CommandCase

_ASKED = "monasca_common.kafka.transport.admin.Admin.partition_counts"


class InterruptedTest(CommandCase):
    command = ()

    def interrupted(self, line, signum):
        """Its exit status, and whether it complains; the signal comes as it has reached its broker."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            text = f"[kafka]\nbootstrap_servers = 127.0.0.1:{listener.getsockname()[1]}\n"

            def interrupt():
                with listener.accept()[0]:
                    os.kill(os.getpid(), signum)
                    ended.wait()

            ended = threading.Event()
            thread = threading.Thread(target=interrupt)
            thread.start()
            status, _, err = self.run_command(*line.split(), text=text)
            ended.set()
            thread.join()
        return status, "Traceback" in err or "monasca-common " in err

    def test_ctrl_c_and_sigterm_end_them_at_once(self):
        before = signal.getsignal(signal.SIGTERM)
        for line in ("topic list", "lag list", "durability check", "balance", "offsets show --group g --topic x"):
            for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                self.assertEqual((status, False), self.interrupted(line, signum), line)
        for line in ("topic tail x", "lag watch", "audit watch"):
            self.assertEqual((0, False), self.interrupted(line, signal.SIGTERM), line)
        self.assertEqual(before, signal.getsignal(signal.SIGTERM))

    def test_a_call_of_the_client_that_returns_in_spite_of_the_signal_changes_no_status(self):
        def returned(signum, *_, **__):
            try:
                signal.raise_signal(signum)
            except KeyboardInterrupt as interrupt:
                raise SystemError("returned a result with an exception set") from interrupt

        text = "[kafka]\nbootstrap_servers = 127.0.0.1:1\n"
        for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with fixtures.MonkeyPatch(_ASKED, functools.partial(returned, signum)):
                self.assertEqual((status, ""), self.run_command("topic", "list", text=text)[:2])
                self.assertEqual((0, ""), self.run_command("topic", "tail", "x", text=text)[:2])
