# SPDX-License-Identifier: Apache-2.0
"""A password goes to another machine over TLS, or because somebody allowed it otherwise."""

from monasca_common.api.service import storage_of
from monasca_common.storage import load_storage
from monasca_common.storage.influxdb import InfluxdbStorage
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

_OLD = "[influxdb]\nip_address = influx.example.org\nuser = mona\npassword = hidden\n"


class CredentialsTest(ConfigurationTestCase):
    def storage(self, url, *lines):
        return self.configured(
            "\n".join(["[storage]", "driver = influxdb", *lines, "[database]", f"connection = {url}"])
        )

    def test_a_password_without_tls_to_another_machine_is_refused_with_the_option_and_the_remedy(self):
        for host in ("influx.example.org", "10.0.0.7", "[2001:db8::7]", "localhost.example.org", "128.0.0.1"):
            said = self.refused(load_storage, self.storage(f"influxdb://mona:hidden@{host}:8086/monasca"))
            self.assertIn(f"sends a password to {host.strip('[]')} without TLS: write influxdb+https://", said)
            self.assertIn("set allow_insecure_credentials = true in group [storage]", said)
            self.assertNotIn("hidden", said)
            self.assertNotIn("mona:", said)

    def test_it_is_sent_if_an_option_says_so(self):
        conf = self.storage("influxdb://mona:hidden@host/monasca", "allow_insecure_credentials = true")
        self.assertIsInstance(load_storage(conf), InfluxdbStorage)

    def test_tls_this_machine_and_no_password_need_no_consent(self):
        for url in (
            "influxdb+https://mona:hidden@host/monasca",
            "influxdb://mona:hidden@localhost/monasca",
            "influxdb://mona:hidden@127.0.0.1/monasca",
            "influxdb://mona:hidden@127.8.0.1/monasca",
            "influxdb://mona:hidden@[::1]/monasca",
            "influxdb://mona@host/monasca",
            "influxdb://host/monasca",
        ):
            with self.subTest(url):
                self.assertIsInstance(load_storage(self.storage(url)), InfluxdbStorage)

    def test_an_api_which_only_reads_needs_no_consent(self):
        self.assertIsNone(storage_of(self.storage("influxdb://mona:hidden@host/monasca")))

    def test_an_old_file_needs_consent_too(self):
        said = self.refused(load_storage, self.configured(_OLD))
        self.assertIn("sends a password to influx.example.org without TLS", said)
        self.assertIn("[influxdb] ssl = true", said)
        self.assertNotIn("hidden", said)
        for more in ("ssl = true\n", "[storage]\nallow_insecure_credentials = true\n"):
            self.assertIsInstance(load_storage(self.configured(_OLD + more)), InfluxdbStorage)
