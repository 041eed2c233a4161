# SPDX-License-Identifier: Apache-2.0
"""Runs a command in this process, with its own configuration."""

import signal

import fixtures

from monasca_common.cli.main import main
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
        self.out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.err = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", self.out))
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", self.err))

    def run_command(self, *arguments, text=None, has_file=True):
        """Return the exit status, standard output and standard error of this call."""
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        path = self.path_of(self.configuration if text is None else text)
        configuration = ("--config-file", path) if has_file else ()
        try:
            status = main([*self.command, *arguments, *configuration])
        except SystemExit as refused:
            status = refused.code
        outputs = []
        for stream in (self.out, self.err):
            stream.seek(0)
            outputs.append(stream.read())
        return status, *outputs
