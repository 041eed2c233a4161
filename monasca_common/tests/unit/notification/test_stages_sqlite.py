# SPDX-License-Identifier: Apache-2.0
"""The contract of the stages in SQLite."""

from monasca_common.tests.unit.notification import stages_contract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class SilencesInSqliteTest(stages_contract.SilencesContract, SqliteTestCase):
    pass


class RepeatsInSqliteTest(stages_contract.RepeatsContract, SqliteTestCase):
    pass


class GroupsInSqliteTest(stages_contract.GroupsContract, SqliteTestCase):
    pass


class LimitsInSqliteTest(stages_contract.LimitsContract, SqliteTestCase):
    pass


class InhibitionInSqliteTest(stages_contract.InhibitionContract, SqliteTestCase):
    pass
