# SPDX-License-Identifier: Apache-2.0
"""Tenants cannot make this service send requests to servers that only it can reach."""

import ipaddress
import socket
import threading
from unittest import mock

from oslotest import base

from monasca_common.notification import addresses
from monasca_common.notification.addresses import AddressRules, endpoint, resolve
from monasca_common.notification.errors import AddressRefused, SendFailed
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.settings import HttpSettings
from monasca_common.tests.unit.notification.receivers import ALLOWED, HttpReceiver

DENIED = ("8.8.8.0/24", "10.1.0.0/16")
# Names and their resolved addresses, which the owner of a name chooses.
NAMES = {
    "127.0.0.1.nip.example": ["127.0.0.1"],
    "localtest.example": ["127.0.0.1"],
    "six.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "private.example": ["10.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "both.example": ["93.184.216.34", "127.0.0.1"],
    "both-six.example": ["93.184.216.34", "fd00::1"],
    "xn--e1afmkfd.example": ["192.168.1.1"],
    "metadata.google.internal": ["169.254.169.254"],
}
# Each URL leads to an internal address, or is parsed differently by different libraries. {p}: the port of a local
# server.
_HOSTILE = """
http://127.0.0.1:{p}/ http://127.0.0.2:{p}/ http://127.255.255.255:{p}/ http://localhost:{p}/ http://LOCALHOST:{p}/
http://127.1:{p}/ http://127.0.1:{p}/ http://0:{p}/ http://0.0.0.0:{p}/ http://0.1.2.3:{p}/
http://2130706433:{p}/ http://0x7f000001:{p}/ http://0x7f.0.0.1:{p}/ http://0x7f.1:{p}/ http://0X7F.0X0.0X0.0X1:{p}/
http://017700000001:{p}/ http://0177.0.0.1:{p}/ http://0177.1:{p}/ http://00000177.0.0.01:{p}/ http://127.0x0.0.1:{p}/
http://[::1]:{p}/ http://[::]:{p}/ http://[0:0:0:0:0:0:0:1]:{p}/ http://[0000::0001]:{p}/ http://[::127.0.0.1]:{p}/
http://[::ffff:127.0.0.1]:{p}/ http://[::ffff:7f00:1]:{p}/ http://[0:0:0:0:0:ffff:127.0.0.1]:{p}/
http://[::ffff:169.254.169.254]/ http://[::ffff:10.0.0.1]/ http://[::ffff:8.8.8.8]/ http://[64:ff9b::7f00:1]/
http://[64:ff9b::a9fe:a9fe]/ http://[64:ff9b:1::a00:1]/ http://[2002:7f00:1::]/ http://[2002:a00:1::]/
http://[2001:0:7f00:1::]/ http://[fc00::1]/ http://[fd00:ec2::254]/ http://[fe80::1]/ http://[fe80::1%25lo]/
http://[fec0::1]/ http://[ff02::1]/ http://[ff0e::1]/ http://[2001:db8::1]/ http://[3fff::1]/ http://[100::1]/
http://[5f00::1]/ http://[4000::1]/
http://10.0.0.1/ http://10.255.255.255/ http://172.16.0.1/ http://172.31.255.254/ http://192.168.0.1/
http://100.64.0.1/ http://100.127.255.254/ http://100.100.100.200/ http://169.254.169.254/latest/meta-data/
http://169.254.0.1/ http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/ http://168.63.129.16/
http://192.0.0.192/ http://192.0.2.1/ http://198.18.0.1/ http://198.51.100.1/ http://203.0.113.1/ http://192.88.99.1/
http://224.0.0.1/ http://239.255.255.250/ http://240.0.0.1/ http://255.255.255.255/
http://127.0.0.1.nip.example:{p}/ http://localtest.example:{p}/ http://six.example:{p}/ http://mapped.example:{p}/
http://private.example/ http://metadata.example/ http://both.example:{p}/ http://both-six.example:{p}/
http://xn--e1afmkfd.example/ http://metadata.google.internal/computeMetadata/v1/
http://user@127.0.0.1:{p}/ http://user:password@93.184.216.34/ http://93.184.216.34@127.0.0.1:{p}/
http://@93.184.216.34/ http://93.184.216.34:80@127.0.0.1:{p}/ http://127.0.0.1:{p}\\@93.184.216.34/
http://93.184.216.34\\@127.0.0.1:{p}/ http://127.0.0.1:{p}#@93.184.216.34/ http://127.0.0.1:{p}?@93.184.216.34/
http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{p}/ http://①②⑦.⓪.⓪.①:{p}/ http://127。0。0。1:{p}/ http://\uff11\uff12\uff17.\uff10.\uff10.\uff11:{p}/
http://пример.example/
http://[::1%25]:{p}/ http://%31%32%37.0.0.1:{p}/ http://127.0.0.1%00.example:{p}/ http://127.0.0.1%2f.example/
http:///etc/passwd http://:{p}/ http://[]/ http://[127.0.0.1/ http://93.184.216.34:0/ http://93.184.216.34:99999/
http://93.184.216.34:x/ https://127.0.0.1:{p}/ https://localhost:{p}/ //127.0.0.1:{p}/ 127.0.0.1:{p}/hook
file:///etc/passwd ftp://127.0.0.1/ gopher://127.0.0.1:{p}/_x dict://127.0.0.1:{p}/ ldap://127.0.0.1/ unix:///run/x
jar:http://127.0.0.1!/ data:text/plain,x javascript:alert(1) http+unix://%2frun%2fx/
"""
HOSTILE = _HOSTILE.split()
SPOILT = ["http://93.184.216.34/\r\nX-Injected: 1", "http://93.184.216.34/a b", "http://93.184.216.34/\tx", "", " "]


def lookup(host, port, **named):
    """Resolve the names above; numbers are parsed by the C library of this machine."""
    if host in NAMES:
        return [(None, None, None, "", (address, port)) for address in NAMES[host]]
    return socket.getaddrinfo(host, port, **named)


class HostileTest(base.BaseTestCase):
    def test_all_hostile_addresses_are_refused_without_a_connection(self):
        receiver = HttpReceiver()
        self.addCleanup(receiver.close)
        sender = HttpClient(HttpSettings(), lookup)
        urls = [url.replace("{p}", str(receiver.port)) for url in HOSTILE] + SPOILT
        passed = []
        for url in urls:
            try:
                where = endpoint(url)
                found = resolve(where.host, where.port, AddressRules(), 10.0, lookup)
                passed.append((url, found))  # no request is sent, because anyone can own the address
                continue
            except AddressRefused:
                pass
            try:
                sender.post(url, b"{}", {}, 10.0)
            except AddressRefused:
                continue
            except SendFailed as error:
                passed.append((url, str(error)))
            else:
                passed.append((url, "taken"))

        self.assertGreaterEqual(len(urls), 60)
        self.assertEqual([], passed)
        self.assertEqual([], receiver.requests)

    def test_a_name_that_later_resolves_to_another_address_is_not_connected_to(self):
        receiver = HttpReceiver()
        self.addCleanup(receiver.close)
        answers = [["127.0.0.1"], ["10.0.0.1"]]

        def changing(_host, port, **_):
            return [(None, None, None, "", (address, port)) for address in answers.pop(0)]

        HttpClient(HttpSettings(ALLOWED), changing).post(receiver.url(host="rebind.example"), b"{}", {}, 10.0)

        self.assertEqual(1, len(receiver.requests))
        self.assertEqual(1, len(answers))


class RulesTest(base.BaseTestCase):
    def permitted(self, address, *allowed):
        return AddressRules(tuple(map(ipaddress.ip_network, allowed))).permits(ipaddress.ip_address(address))

    def test_public_addresses_are_permitted(self):
        for address in ("93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "2a00:1450:4001::1"):
            self.assertTrue(self.permitted(address), address)

    def test_an_allowed_address_is_permitted_and_its_mapped_form_is_not(self):
        self.assertTrue(self.permitted("10.1.2.3", "10.1.0.0/16"))
        self.assertFalse(self.permitted("10.2.0.1", "10.1.0.0/16"))
        self.assertFalse(self.permitted("::ffff:10.1.2.3", "10.1.0.0/16"))

    def test_a_denied_address_is_not_permitted_even_if_it_is_public_or_allowed(self):
        denied = AddressRules((ipaddress.ip_network("10.0.0.0/8"),), tuple(map(ipaddress.ip_network, DENIED)))
        found = [denied.permits(ipaddress.ip_address(each)) for each in ("8.8.8.8", "10.1.2.3", "10.2.0.1", "9.9.9.9")]
        self.assertEqual([False, False, True, True], found)

    def test_a_public_address_of_this_machine_is_not_permitted_unless_it_is_allowed(self):
        own = ["127.0.0.1", "93.184.216.34"]
        bindable = mock.patch.object(addresses, "_can_bind", lambda address: str(address) in own)
        with bindable:
            self.assertEqual([False, True], [self.permitted(each) for each in ("93.184.216.34", "8.8.8.8")])
            self.assertTrue(self.permitted("93.184.216.34", "93.184.216.34"))
            own.append("192.0.2.1")  # a machine that can bind any address
            self.assertTrue(self.permitted("93.184.216.34"))
        self.assertEqual([True, False], [addresses._can_bind(ipaddress.ip_address(each)) for each in own[:2]])

    def test_a_host_with_one_forbidden_address_is_refused(self):
        refused = self.assertRaises(AddressRefused, resolve, "both.example", 80, AddressRules(), 10.0, lookup)
        self.assertIn("notifications must not be sent to both.example", str(refused))
        self.assertNotIn("127.0.0.1", str(refused))  # tenants can read it
        self.assertIn("(the address is 127.0.0.1)", refused.for_operators)


class EndpointTest(base.BaseTestCase):
    def test_a_url_keeps_its_path_and_query_and_does_not_show_them(self):
        where = endpoint("https://Example.org:8443/a/b?token=s3cret#part")
        self.assertEqual(("example.org", 8443, "/a/b?token=s3cret"), (where.host, where.port, where.target))
        self.assertEqual("https://example.org:8443", where.shown)

    def test_the_default_port_is_not_in_the_host_header(self):
        self.assertEqual("example.org", endpoint("https://example.org:443/").authority)
        self.assertEqual("[2606:2800:220:1::1]:81", endpoint("http://[2606:2800:220:1::1]:81").authority)


SLOW = "slow.example", 80, AddressRules()


class ResolveTest(base.BaseTestCase):
    def test_a_look_up_of_a_silent_name_server_times_out(self):
        failed = self.assertRaises(SendFailed, resolve, *SLOW, 0.05, self.hanging())

        self.assertIn("slow.example cannot be resolved: no response within", str(failed))

    def test_an_unknown_name_is_a_retriable_failure(self):
        def unknown(*_, **__):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        self.assertRaises(SendFailed, resolve, *SLOW, 5.0, unknown)

    def test_a_literal_address_needs_no_look_up(self):
        for host in ("93.184.216.34", "2606:2800:220:1::1"):
            [address] = resolve(host, 80, AddressRules(), 0.001, self.hanging())
            self.assertEqual(host, str(address))

    def hanging(self):
        """Return a look-up that ends with the test."""
        over = threading.Event()
        self.addCleanup(over.set)
        return lambda *_, **__: over.wait(60) or []
