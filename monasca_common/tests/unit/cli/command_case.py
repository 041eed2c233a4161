# SPDX-License-Identifier: Apache-2.0
"""Runs a command in this process, with its own configuration."""

import json
import signal

from monasca_common.tests.command import run_main
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class CommandCase(ConfigurationTestCase):
    """``command``: the words of the command. ``configuration``: the text of the configuration file."""

    command: tuple[str, ...] = ()
    configuration = ""

    def setUp(self):
        super().setUp()
        # A service command does not restore signal handlers, and tests that run in the background ignore Ctrl-C.
        for signum, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            self.addCleanup(signal.signal, signum, signal.signal(signum, handler))

    def run_command(self, *arguments, text=None, has_file=True):
        """Return the exit status, standard output and standard error of this call."""
        path = self.path_of(self.configuration if text is None else text)
        return run_main(*self.command, *arguments, *(("--config-file", path) if has_file else ()))

    def run_json(self, *arguments, **named):
        """Return the exit status and the parsed output."""
        status, out, _ = self.run_command(*arguments, "-f", "json", **named)
        return status, json.loads(out)

    def rows(self, *arguments, **named):
        """Return the rows of a successful command."""
        status, out, err = self.run_command(*arguments, "-f", "json", **named)
        self.assertEqual(0, status, err)
        return json.loads(out)

    def lines(self, *arguments):
        """Return the lines of a successful command, each of which is an object."""
        status, out, err = self.run_command(*arguments, "-f", "json")
        self.assertEqual(0, status, err)
        return [json.loads(line) for line in out.splitlines()]
