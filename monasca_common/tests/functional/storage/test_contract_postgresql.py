# SPDX-License-Identifier: Apache-2.0
"""The contract of storage, over a real PostgreSQL."""

from monasca_common.storage import testing
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase


class PostgresqlWriteTest(testing.WriteContract, PostgresqlTestCase):
    pass


class PostgresqlFenceTest(testing.FenceContract, PostgresqlTestCase):
    pass


class PostgresqlAccountingTest(testing.AccountingContract, PostgresqlTestCase):
    pass


class PostgresqlKeyTest(testing.KeyContract, PostgresqlTestCase):
    pass


class PostgresqlRefusalTest(testing.RefusalContract, PostgresqlTestCase):
    pass


class PostgresqlResetTest(testing.ResetContract, PostgresqlTestCase):
    pass


class PostgresqlOperationTest(testing.OperationContract, PostgresqlTestCase):
    pass
