# SPDX-License-Identifier: Apache-2.0
"""Runs a command in this process, on a configuration of its own."""

import fixtures

from monasca_common.cli.main import main
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class CommandCase(ConfigurationTestCase):
    """``command``: its words; ``configuration``: the text of its file."""

    command: tuple[str, ...] = ()
    configuration = ""

    def setUp(self):
        super().setUp()
        self.out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.err = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", self.out))
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", self.err))

    def run_command(self, *arguments, text=None):
        """The exit status, standard output and standard error of this call."""
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        path = self.path_of(self.configuration if text is None else text)
        try:
            status = main([*self.command, *arguments, "--config-file", path])
        except SystemExit as refused:
            status = refused.code
        told = []
        for stream in (self.out, self.err):
            stream.seek(0)
            told.append(stream.read())
        return status, *told
