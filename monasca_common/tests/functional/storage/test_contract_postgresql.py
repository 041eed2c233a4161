# SPDX-License-Identifier: Apache-2.0
"""The contract of storage, over a real PostgreSQL."""

from monasca_common.storage import testing
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlWriteTest(testing.WriteContract, PostgresqlTestCase):
    pass


class PostgresqlFenceTest(testing.FenceContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlAccountingTest(testing.AccountingContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlKeyTest(testing.KeyContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlRefusalTest(testing.RefusalContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlResetTest(testing.ResetContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests; PostgresqlFenceTest is the smoke test")
class PostgresqlOperationTest(testing.OperationContract, PostgresqlTestCase):
    pass
