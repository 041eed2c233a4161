# SPDX-License-Identifier: Apache-2.0
from oslo_config import cfg
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.operations.dashboard.settings import dashboard_settings


class DashboardSettingsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.file = self.create_tempfiles([("file", "x")], ".txt")[0]

    def read(self, **options):
        lines = "".join(f"{name} = {value}\n" for name, value in options.items())
        path = self.create_tempfiles([("dashboard", f"[dashboard]\n{lines}")], ".conf")[0]
        conf = cfg.ConfigOpts()
        conf(["--config-file", path], project="monasca-common")
        return dashboard_settings(conf)

    def refusal(self, **options):
        return str(self.assertRaises(ConfigurationError, self.read, **options))

    def test_the_default_is_a_loopback_address(self):
        settings = self.read(login="none")
        self.assertEqual(("127.0.0.1", True, False), (settings.host, settings.is_local, settings.has_tls))

    def test_a_login_requires_keystone_or_a_password_file(self):
        self.assertIn("keystone_url", self.refusal())
        self.assertIn("password_file", self.refusal(login="file"))

    def test_an_address_for_other_machines_needs_a_login(self):
        for host in ("0.0.0.0", "::", "192.0.2.7", "monasca.example.org"):
            self.assertIn("login in group [dashboard] is none", self.refusal(login="none", host=host))

    def test_an_address_for_other_machines_needs_tls_or_a_proxy_with_tls(self):
        options = {"login": "file", "password_file": self.file, "host": "0.0.0.0"}
        self.assertIn("without TLS", self.refusal(**options))
        self.assertFalse(self.read(**options, tls_at_proxy="true").is_local)
        self.assertTrue(self.read(**options, tls_certificate=self.file, tls_key=self.file).has_tls)

    def test_a_proxy_needs_a_login(self):
        self.assertIn("the proxy", self.refusal(login="none", tls_at_proxy="true"))

    def test_a_certificate_without_a_key_is_refused(self):
        self.assertIn("belong together", self.refusal(login="none", tls_certificate=self.file))

    def test_a_missing_file_and_an_invalid_url_are_refused(self):
        self.assertIn("password_file", self.refusal(login="file", password_file="/nowhere"))
        for url in ("localhost:5000", "http://[::1", "http://host:99999", "http://host:x", "https://"):
            self.assertIn("keystone_url in group [dashboard] is not a URL", self.refusal(keystone_url=url), url)

    def test_a_password_in_a_url_is_refused_and_not_shown(self):
        refusal = self.refusal(keystone_url="https://ada:secret@keystone.example.org")
        self.assertIn("keystone_url in group [dashboard] contains a user or a password", refusal)
        self.assertNotIn("secret", refusal)
