# SPDX-License-Identifier: Apache-2.0
"""Commands whose broker never answers, interrupted."""

import os
import signal
import socket
import threading

from monasca_common.tests.unit.cli.command_case import CommandCase


class InterruptedTest(CommandCase):
    command = ()

    def interrupted(self, line, signum):
        """Its exit status, and whether it complains; the signal comes as it waits for its broker."""
        before = set(threading.enumerate())

        def interrupt():
            while not any(each.name == "kafka-metadata" for each in set(threading.enumerate()) - before):
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signum)

        with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts nobody
            text = f"[kafka]\nbootstrap_servers = 127.0.0.1:{listener.getsockname()[1]}\n"
            thread = threading.Thread(target=interrupt)
            thread.start()
            status, _, err = self.run_command(*line.split(), text=text)
            thread.join()
        return status, "Traceback" in err or "monasca-common " in err

    def test_ctrl_c_and_sigterm_end_them_at_once(self):
        before = signal.getsignal(signal.SIGTERM)
        for line in ("topic list", "lag list", "durability check", "balance"):
            for signum, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                self.assertEqual((status, False), self.interrupted(line, signum), line)
        self.assertEqual((0, False), self.interrupted("topic tail x", signal.SIGTERM))
        self.assertEqual(before, signal.getsignal(signal.SIGTERM))
