# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from fixtures import MonkeyPatch
from oslotest import base

from monasca_common.devbroker import fixtures


class StubCluster:
    """A cluster without nodes, which counts its starts and stops."""

    def __init__(self, nodes, **settings):
        self.settings = settings
        self.starts = self.stops = 0
        self.nodes = ()
        self.proxy = self.admin = mock.Mock()

    def start(self):
        self.starts += 1

    def stop(self):
        self.stops += 1


class TestSharedKafkaCluster(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        for name, value in {"KafkaCluster": StubCluster, "_clusters": {}, "atexit": mock.Mock()}.items():
            self.useFixture(MonkeyPatch(f"{fixtures.__name__}.{name}", value))

    def shared(self, **settings):
        """The cluster of a test that asks for such a one."""
        with fixtures.SharedKafkaCluster(**settings) as fixture:
            return fixture.cluster

    def test_tests_with_the_same_settings_have_the_same_cluster(self):
        first, second = self.shared(tls=True), self.shared(tls=True)
        self.assertIs(first, second)
        self.assertEqual((1, 0), (first.starts, first.stops))

    def test_a_third_kind_ends_the_one_that_was_not_asked_for_the_longest(self):
        plain, proxied = self.shared(), self.shared(proxied=True)
        self.assertIs(plain, self.shared())
        self.shared(sasl=True)
        self.assertEqual((0, 1), (plain.stops, proxied.stops))
        self.assertIsNot(proxied, self.shared(proxied=True))
