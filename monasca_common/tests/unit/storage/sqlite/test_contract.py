# SPDX-License-Identifier: Apache-2.0
"""The contract of storage, over SQLite."""

from monasca_common.storage.testing import (
    AccountingContract,
    FenceContract,
    KeyContract,
    OperationContract,
    RefusalContract,
    ResetContract,
    WriteContract,
)
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class SqliteWriteTest(WriteContract, SqliteTestCase): ...


class SqliteFenceTest(FenceContract, SqliteTestCase): ...


class SqliteAccountingTest(AccountingContract, SqliteTestCase): ...


class SqliteKeyTest(KeyContract, SqliteTestCase): ...


class SqliteRefusalTest(RefusalContract, SqliteTestCase): ...


class SqliteResetTest(ResetContract, SqliteTestCase): ...


class SqliteOperationTest(OperationContract, SqliteTestCase): ...
