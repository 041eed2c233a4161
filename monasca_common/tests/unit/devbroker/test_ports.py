# SPDX-License-Identifier: Apache-2.0
import random
import subprocess
import sys
from unittest import mock

from oslotest import base

from monasca_common.devbroker import ports

_TAKE = """
import random, sys
from monasca_common.devbroker import ports
random.SystemRandom.sample = lambda *_: [int(text) for text in sys.argv[1:]]
print(ports.free_ports(1)[0], flush=True)
sys.stdin.read()
"""


class TestFreePorts(base.BaseTestCase):
    def offer(self, *candidates):
        return mock.patch.object(random.SystemRandom, "sample", lambda *_: list(candidates))

    def test_a_port_is_given_once(self):
        first, second = ports.free_ports(2)
        with self.offer(first, second):
            self.assertRaises(ports.PortTaken, ports.free_ports, 1)

    def test_a_folder_for_temporary_files_that_has_gone_is_not_missed(self):
        take = "from monasca_common.devbroker import ports; ports.free_ports(1)"
        program = [sys.executable, "-c", f"import tempfile; tempfile.tempdir = '/gone'; {take}"]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_what_another_process_was_given_is_given_to_nobody_while_that_runs(self):
        candidates = [port for port in random.sample(range(32_000, 32_700), 100) if ports.is_free(port)][:2]
        command = [sys.executable, "-c", _TAKE, *map(str, candidates)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            theirs = int(other.stdout.readline())
            with self.offer(*candidates):
                (ours,) = ports.free_ports(1)
        self.assertEqual(candidates, [theirs, ours])
