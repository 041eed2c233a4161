# SPDX-License-Identifier: Apache-2.0
import socket

from oslotest import base

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime import check_listener, listen


class ListenerTest(base.BaseTestCase):
    def refused(self, *arguments, **names):
        return str(self.assertRaises(ConfigurationError, check_listener, *arguments, **names))

    def test_a_port_that_is_taken_is_named_by_its_option(self):
        with listen("api", "127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            self.assertEqual(
                f"port in group [api] is {port}, at which 127.0.0.1 cannot be listened to (Address already in use): "
                "use another, or another host",
                self.refused("api", "127.0.0.1", port),
            )
            self.assertIn(
                "status_port in group [persister]", self.refused("persister", "127.0.0.1", port, prefix="status_")
            )

    def test_an_address_of_another_machine_is_refused_as_well(self):
        self.assertIn("or another host", self.refused("api", "192.0.2.1", 0))
        self.assertIn("or another host", self.refused("api", "no such name", 0))

    def test_a_port_that_was_checked_is_free(self):
        with listen("api", "127.0.0.1", 0) as chosen:
            port = chosen.getsockname()[1]
        check_listener("api", "127.0.0.1", port)
        check_listener("api", "127.0.0.1", port)

    def test_addresses_of_either_version_can_be_listened_at(self):
        if not socket.has_ipv6:
            self.skipTest("this machine has no IPv6")
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this machine has no IPv6")
        check_listener("api", "::1", 0)
