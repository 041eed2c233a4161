# SPDX-License-Identifier: Apache-2.0
import time
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.quickstart import run


class TestRun(base.BaseTestCase):
    def test_on_a_machine_too_slow_for_its_time_answers_are_lost_and_the_persister_is_killed_all_the_same(self):
        for name in ("Poster", "RowWatch"):
            self.useFixture(fixtures.MockPatchObject(run, name))
        broker, persister, own = mock.Mock(kind="kafka"), mock.Mock(), mock.Mock()
        persister.kill_workers.return_value = 1
        own.sample.return_value = [{}]
        slow = run.Run(broker, persister, Path("nowhere"), 1, seconds=8)

        slow._post(own, time.monotonic() - 9, lambda _: None)

        broker.lose_answers.assert_called_once()
        persister.kill_workers.assert_called_once()
