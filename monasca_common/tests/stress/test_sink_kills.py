# SPDX-License-Identifier: Apache-2.0
"""The kills of `test_persister_kills` for the sink, with concurrent inserts, upserts and deletions."""

from monasca_common.tests.functional.sink.sink_case import SinkCase
from monasca_common.tests.stress.test_persister_kills import Kills, KillsCase


class SinkKillsCase(SinkCase, KillsCase):
    table = "copies"

    # Rule 24
    def test_each_message_is_one_row_even_if_workers_are_killed(self):
        super().test_each_message_is_one_row_even_if_workers_are_killed()
        self.assert_states()


class TestSinkKillsSqlite(SinkKillsCase, Kills):
    database = "sqlite"


class TestSinkKillsPostgresql(SinkKillsCase, Kills):
    database = "postgresql"
