# SPDX-License-Identifier: Apache-2.0
"""Calm in SQLite."""

from monasca_common.tests.unit.notification import calm_contract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class SilencesInSqliteTest(calm_contract.SilencesContract, SqliteTestCase):
    pass


class RepeatsInSqliteTest(calm_contract.RepeatsContract, SqliteTestCase):
    pass


class GroupsInSqliteTest(calm_contract.GroupsContract, SqliteTestCase):
    pass


class LimitsInSqliteTest(calm_contract.LimitsContract, SqliteTestCase):
    pass


class InhibitionInSqliteTest(calm_contract.InhibitionContract, SqliteTestCase):
    pass
