# SPDX-License-Identifier: Apache-2.0
import socket

from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.listener import check_listener, listen


class ListenerTest(base.BaseTestCase):
    def refused(self, *arguments, **names):
        return str(self.assertRaises(ConfigurationError, check_listener, *arguments, **names))

    def test_the_error_names_the_option_of_a_taken_port(self):
        with listen("api", "127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            self.assertEqual(
                f"the service cannot listen at 127.0.0.1:{port} (Address already in use): change port or host in group "
                "[api]",
                self.refused("api", "127.0.0.1", port),
            )
            self.assertIn(
                "change status_port or status_host in group [persister]",
                self.refused("persister", "127.0.0.1", port, prefix="status_"),
            )

    def test_an_address_of_another_machine_is_refused(self):
        self.assertIn("change port or host", self.refused("api", "192.0.2.1", 0))
        self.assertIn("change port or host", self.refused("api", "no such name", 0))
        self.assertIn("change port or host", self.refused("api", "127.0..1", 0))

    def test_a_checked_port_stays_free(self):
        with listen("api", "127.0.0.1", 0) as chosen:
            port = chosen.getsockname()[1]
        check_listener("api", "127.0.0.1", port)
        check_listener("api", "127.0.0.1", port)

    def test_ipv4_and_ipv6_addresses_are_accepted(self):
        if not socket.has_ipv6:
            self.skipTest("this machine has no IPv6")
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this machine has no IPv6")
        check_listener("api", "::1", 0)
