# SPDX-License-Identifier: Apache-2.0
import contextlib
import importlib.metadata
import io
import re
import shlex
import socket
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.cli.main import COMMANDS, main
from monasca_common.tests.command import run_main


class TestCommandLine(base.BaseTestCase):
    def failure(self, status, *arguments):
        """Return standard error of a command that ends with this status."""
        found, _, err = run_main(*arguments)
        self.assertEqual(status, found)
        return err

    def test_every_command_has_a_description_and_a_valid_example(self):
        for command in importlib.metadata.entry_points(group=COMMANDS):
            words = command.name.replace("_", " ")
            loaded = command.load()
            parser = loaded(None, None).get_parser(words)
            shown = parser.format_help()
            examples = re.findall(rf"^monasca-common {words}\b(.*)$", shown, re.MULTILINE)
            self.assertTrue(examples, words)
            for arguments in examples:
                parser.parse_args(shlex.split(arguments))

    def test_help_names_every_option_of_broker_start(self):
        status, shown, _ = run_main("broker", "start", "--help")
        self.assertEqual(0, status)
        for option in ("--nodes", "--port", "--data-dir", "--tls", "--sasl", "--format"):
            self.assertIn(option, shown)

    def test_help_after_options_is_the_help_of_the_command(self):
        status, shown, _ = run_main("lag", "list", "--config-file", "x.conf", "--help")
        self.assertEqual(0, status)
        self.assertRegex(shown, "usage: .* lag list \\[-h\\]")

    def test_characters_that_a_terminal_cannot_show_are_escaped(self):
        out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        with contextlib.redirect_stdout(out):
            self.assertEqual(0, main(["topic", "tail", "--help"]))
        out.flush()
        self.assertIn(b"TOPIC[:P,P\\u2026]", out.buffer.getvalue())

    def test_a_usage_error_ends_with_status_2(self):
        for arguments in (["--nodes", "2"], ["--port", "70000"], ["--port", "kafka"]):
            self.failure(2, "broker", "start", *arguments)

    def test_a_call_without_a_command_is_a_usage_error_and_opens_no_shell(self):
        for arguments in ([], ["--verbose"]):
            self.assertIn("monasca-common --help lists them", self.failure(2, *arguments))

    def test_a_folder_that_cannot_be_created_is_an_error_before_anything_starts(self):
        self.assertIn("--keep-data /dev/null/data ", self.failure(1, "quickstart", "--keep-data", "/dev/null/data"))

    def test_the_api_does_not_quote_an_unreadable_file(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, "api.conf")
        path.write_text("[kafka]\nsasl_password pa55word\n")
        shown = self.failure(1, "api", "--config-file", str(path))
        self.assertIn(f"line 2 of {path}", shown)
        self.assertNotIn("pa55word", shown)

    def test_the_api_names_the_option_of_a_port_in_use(self):
        path = Path(self.useFixture(fixtures.TempDir()).path, "api.conf")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            path.write_text(f"[kafka]\nbootstrap_servers = a:1\n[api]\nauth_strategy = noauth\nport = {port}\n")
            shown = self.failure(1, "api", "--config-file", str(path))
        self.assertIn("change port or host in group [api]", shown)

    def test_a_wrong_port_is_reported_with_its_option(self):
        shown = self.failure(2, "broker", "start", "--port", "kafka")
        self.assertIn("kafka is not a port: use 1 to 65533, or 0 for a free one", shown)

    def test_a_failed_start_ends_with_status_1_and_one_line(self):
        empty = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable("PATH", empty))
        self.useFixture(fixtures.EnvironmentVariable("JAVA_HOME"))
        shown = self.failure(1, "broker", "start")
        self.assertIn("install Java 17", shown)
        self.assertNotIn("Traceback", shown)
