# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import io
import pathlib

from oslo_config import cfg, generator

from monasca_common.kafka.config.configuration import consumer_settings, producer_settings
from monasca_common.kafka.config.groups import CONSUMER_GROUPS
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

ETC = pathlib.Path(__file__).parents[4] / "etc"
SAMPLE = ETC / "monasca-common.conf.sample"


class SampleConfigurationTest(ConfigurationTestCase):
    def test_the_sample_has_the_declared_options(self):
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf(["--config-file", str(ETC / "config-generator.conf")])
        written = io.StringIO()

        generator.generate(conf, output_file=written)

        self.assertEqual(
            SAMPLE.read_text(),
            written.getvalue(),
            "run: oslo-config-generator --config-file etc/config-generator.conf",
        )

    def test_the_sample_configures_everything_once_it_has_brokers(self):
        text = SAMPLE.read_text().replace("#bootstrap_servers = kafka1", "bootstrap_servers = kafka1", 1)

        conf = self.read(self.path_of(text))

        self.assertIsNotNone(producer_settings(conf))
        for group in CONSUMER_GROUPS:
            self.assertIsNotNone(consumer_settings(conf, group))
