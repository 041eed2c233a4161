# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.cli import quickstart
from monasca_common.quickstart.services import ServiceFailed


class PortTest(base.BaseTestCase):
    def test_the_apis_port_is_none_that_systems_hand_out_for_outgoing_connections(self):
        written = self.useFixture(
            fixtures.MockPatchObject(quickstart, "write_configuration", side_effect=ServiceFailed("enough"))
        ).mock
        command = mock.MagicMock(spec=quickstart.Quickstart)
        with contextlib.ExitStack() as stack:
            wanted = argparse.Namespace(keep_data=None)
            self.assertRaises(ServiceFailed, quickstart.Quickstart._run, command, wanted, stack)
        port = written.call_args.args[2]
        self.assertTrue(20_000 <= port < 32_000, port)
