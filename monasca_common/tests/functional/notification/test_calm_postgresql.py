# SPDX-License-Identifier: Apache-2.0
"""Calm in a real PostgreSQL."""

from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.unit.notification import calm_contract


class SilencesInPostgresqlTest(calm_contract.SilencesContract, PostgresqlTestCase):
    pass


class RepeatsInPostgresqlTest(calm_contract.RepeatsContract, PostgresqlTestCase):
    pass


class GroupsInPostgresqlTest(calm_contract.GroupsContract, PostgresqlTestCase):
    pass


class LimitsInPostgresqlTest(calm_contract.LimitsContract, PostgresqlTestCase):
    pass


class InhibitionInPostgresqlTest(calm_contract.InhibitionContract, PostgresqlTestCase):
    pass
