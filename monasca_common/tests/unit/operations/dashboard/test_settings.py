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

    def test_it_listens_on_a_loopback_address_by_default(self):
        settings = self.read(login="none")
        self.assertEqual(("127.0.0.1", True, False), (settings.host, settings.is_local, settings.has_tls))

    def test_without_a_word_about_logins_it_does_not_start(self):
        self.assertIn("keystone_url", self.refusal())
        self.assertIn("password_file", self.refusal(login="file"))

    def test_an_address_for_other_machines_needs_a_login(self):
        for host in ("0.0.0.0", "::", "192.0.2.7", "monasca.example.org"):
            self.assertIn("login in group [dashboard] is none", self.refusal(login="none", host=host))

    def test_other_machines_need_tls_or_a_word_that_a_proxy_does_it(self):
        options = {"login": "file", "password_file": self.file, "host": "0.0.0.0"}
        self.assertIn("without TLS", self.refusal(**options))
        self.assertFalse(self.read(**options, tls_at_proxy="true").is_local)
        self.assertTrue(self.read(**options, tls_certificate=self.file, tls_key=self.file).has_tls)

    def test_a_proxy_needs_a_login(self):
        self.assertIn("the proxy", self.refusal(login="none", tls_at_proxy="true"))

    def test_half_of_tls_is_refused(self):
        self.assertIn("belong together", self.refusal(login="none", tls_certificate=self.file))

    def test_a_file_that_is_not_there_and_a_url_that_is_none_are_named(self):
        self.assertIn("password_file", self.refusal(login="file", password_file="/nowhere"))
        self.assertIn("api_url", self.refusal(login="none", api_url="localhost:8070"))
        for url in ("http://[::1", "http://host:99999", "http://host:x", "https://"):
            self.assertIn("api_url in group [dashboard] is not a URL", self.refusal(login="none", api_url=url), url)

    def test_a_password_in_a_url_is_refused_and_not_shown(self):
        for name in ("api_url", "keystone_url"):
            refusal = self.refusal(login="none", **{name: "https://ada:secret@api.example.org"})
            self.assertIn(f"{name} in group [dashboard] has a user or a password", refusal)
            self.assertNotIn("secret", refusal)
