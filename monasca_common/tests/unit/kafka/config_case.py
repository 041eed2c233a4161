# SPDX-License-Identifier: Apache-2.0
"""Base class of tests that read configuration files."""

import textwrap

from oslo_config import cfg
from oslo_log import versionutils
from oslotest import base

from monasca_common.kafka.config import config_file
from monasca_common.kafka.errors import ConfigurationError


class ConfigurationTestCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.forget_warnings()

    def forget_warnings(self) -> None:
        """Forget the warnings that a process logs only once, so that they are logged again after each call of this
        method."""
        config_file._warned.clear()
        versionutils._deprecated_messages_sent.clear()

    def path_of(self, text: str) -> str:
        """Write a file with this text; it is deleted after the test."""
        return self.create_tempfiles([("test", textwrap.dedent(text))])[0]

    def configured(self, text: str) -> cfg.ConfigOpts:
        return self.read(self.path_of(text))

    def read(self, path: str) -> cfg.ConfigOpts:
        conf = cfg.ConfigOpts()
        conf(["--config-file", path], project="monasca-common-tests", default_config_dirs=[])
        return conf

    def with_kafka(self, *lines: str, **groups: str) -> cfg.ConfigOpts:
        """Return ``[kafka]`` with brokers and these lines, and further groups given as text."""
        sections = ["[kafka]", "bootstrap_servers = kafka.example.org:9092", *lines]
        for name, text in groups.items():
            sections += [f"[{name}]", text]
        return self.configured("\n".join(sections) + "\n")

    def refused(self, call, *arguments, **named) -> str:
        """Return the text of the `ConfigurationError` that this call raises."""
        return str(self.assertRaises(ConfigurationError, call, *arguments, **named))
