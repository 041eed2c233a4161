# SPDX-License-Identifier: Apache-2.0


import pathlib
import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker import KafkaCluster
from monasca_common.devbroker.data_folder import DataFolder
from monasca_common.devbroker.errors import BrokerFailed, BrokerTooSlow, InvalidCluster
from monasca_common.devbroker.properties import NodePorts, node_properties, render
from monasca_common.devbroker.security import Security
from monasca_common.tests.kafka_cluster import ProxiedKafkaCluster

ONE = NodePorts(client=1, internal=2, controller=3, mutual_tls=4, advertised=5)
CERTIFICATES = Path("/certificates")


def properties(nodes=1, **security):
    ports = [ONE] * nodes
    return node_properties(nodes, ports, Security(**security), Path("/data/node"), CERTIFICATES)


class TestNodeProperties(base.BaseTestCase):
    def test_clients_receive_the_advertised_port_and_brokers_the_internal_one(self):
        found = properties()
        self.assertEqual("CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2,CONTROLLER://127.0.0.1:3", found["listeners"])
        self.assertEqual("CLIENT://127.0.0.1:5,INTERNAL://127.0.0.1:2", found["advertised.listeners"])
        self.assertEqual("INTERNAL", found["inter.broker.listener.name"])

    def test_one_of_three_nodes_can_be_down(self):
        three, one = properties(nodes=3), properties()
        for name in ("default.replication.factor", "offsets.topic.replication.factor"):
            self.assertEqual(("3", "1"), (three[name], one[name]))
        for name in ("min.insync.replicas", "transaction.state.log.min.isr"):
            self.assertEqual(("2", "1"), (three[name], one[name]))
        self.assertEqual(3, len(three["controller.quorum.voters"].split(",")))

    def test_backslashes_and_characters_beyond_ascii_are_escaped(self):
        self.assertEqual("name=a\\\\b\n", render({"name": "a\\b"}))
        self.assertEqual("name=\\u00e9\\u20ac\n", render({"name": "\u00e9\u20ac"}))


class TestSecurity(base.BaseTestCase):
    def test_each_combination_of_tls_and_passwords_has_its_protocol(self):
        for tls, sasl, protocol in (
            (False, False, "PLAINTEXT"),
            (True, False, "SSL"),
            (False, True, "SASL_PLAINTEXT"),
            (True, True, "SASL_SSL"),
        ):
            self.assertIn(f"CLIENT:{protocol}", properties(tls=tls, sasl=sasl)["listener.security.protocol.map"])

    def test_tls_with_sasl_adds_a_listener_for_certificates(self):
        both = properties(tls=True, sasl=True)
        self.assertIn("MTLS://127.0.0.1:4", both["listeners"])
        self.assertEqual("required", both["listener.name.mtls.ssl.client.auth"])

    def test_with_acls_brokers_log_in_to_each_other(self):
        found = properties(sasl=True, acl=True)
        self.assertIn("INTERNAL:SASL_PLAINTEXT", found["listener.security.protocol.map"])
        self.assertEqual("User:admin;User:internal", found["super.users"])
        self.assertEqual("false", found["allow.everyone.if.no.acl.found"])

    def test_acls_require_tls_or_sasl(self):
        self.assertRaises(InvalidCluster, Security, acl=True)

    def test_the_users_include_an_admin(self):
        security = Security(sasl=True, users={"alice": "wonder"})
        self.assertEqual({"alice", "admin"}, set(security.users))
        self.assertIn("SCRAM-SHA-512=[name=alice,iterations=4096,salt=", " ".join(security.format_arguments()))

    def test_an_unknown_user_is_refused_with_the_known_ones(self):
        refusal = self.assertRaises(InvalidCluster, Security(sasl=True).client_options, "bob", CERTIFICATES)
        self.assertIn("admin, monasca", str(refusal))

    def test_repr_has_no_passwords(self):
        self.assertNotIn("wonder", repr(Security(sasl=True, users={"alice": "wonder"})))


class TestKafkaCluster(base.BaseTestCase):
    def test_contradictory_settings_are_refused(self):
        self.assertRaises(InvalidCluster, KafkaCluster, 2)
        self.assertRaises(InvalidCluster, ProxiedKafkaCluster, tls=True)
        self.assertRaises(InvalidCluster, KafkaCluster, acl=True)

    def test_before_the_start_the_error_names_start(self):
        cluster = KafkaCluster()
        self.assertIn("start()", str(self.assertRaises(InvalidCluster, lambda: cluster.bootstrap_servers)))
        cluster.stop()


class StorageTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "data"

    def prepare(self, *, nodes=1):
        DataFolder(self.folder, nodes, Security()).prepare()

    def test_a_file_instead_of_the_folder_is_refused(self):
        self.folder.write_text("")
        error = self.assertRaises(InvalidCluster, self.prepare)
        self.assertIn("cannot be used ([Errno 17] File exists", str(error))

    def test_a_folder_with_other_files_is_refused_and_unchanged(self):
        self.folder.mkdir()
        (self.folder / "thesis.txt").write_text("years of work")
        self.assertRaises(InvalidCluster, self.prepare)
        self.assertEqual([self.folder / "thesis.txt"], list(self.folder.iterdir()))

    def test_a_folder_with_incomplete_settings_is_refused(self):
        self.prepare()
        (self.folder / "cluster.json").write_text("")  # as after a power failure
        error = self.assertRaises(InvalidCluster, self.prepare)
        self.assertIn(f"{self.folder} cannot be used (Expecting value", str(error))

    def test_a_folder_of_another_cluster_is_refused(self):
        self.prepare(nodes=1)
        self.prepare(nodes=1)
        self.assertRaises(InvalidCluster, self.prepare, nodes=3)

    def test_a_slow_format_is_stopped_with_the_remedy(self):
        slow = [sys.executable, "-c", "import time; time.sleep(60)"]
        storage = DataFolder(self.folder, 1, Security())
        storage.prepare()

        error = self.assertRaises(BrokerTooSlow, storage.format, slow, 0.2)

        self.assertIn("did not format its storage within 0.2 s: end other programs", str(error))

    def test_no_command_line_and_no_error_has_a_password(self):
        message = self.folder.parent / "message"
        program = (
            "import pathlib, sys;"
            f"given = pathlib.Path(sys.argv[-1].removeprefix('@')); text = given.read_text();"
            f"pathlib.Path({str(message)!r}).write_text(f'{{sys.argv}} {{given.stat().st_mode & 0o777:o}}');"
            "sys.exit('refused: ' + text)"
        )
        storage = DataFolder(self.folder, 1, Security(sasl=True, users={"alice": "sesame,=]"}))
        storage.prepare()

        error = self.assertRaises(BrokerFailed, storage.format, [sys.executable, "-c", program], 30)

        self.assertIn("--add-scram\nSCRAM-SHA-512=[name=alice,iterations=4096,salt=", str(error))
        self.assertNotIn("sesame", str(error))
        self.assertRegex(message.read_text(), r"'@[^']+'\] 600$")
        self.assertNotIn("SCRAM", message.read_text())
        self.assertEqual([], [*self.folder.rglob("format-*")])
