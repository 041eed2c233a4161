# SPDX-License-Identifier: Apache-2.0
"""The contract of storage, as tests that run over every driver.

A driver's test module inherits it::

    class MyStorageTest(FenceContract, MyCase): ...

where ``MyCase`` is a `testtools.TestCase` whose ``setUp`` sets ``self.database``, a `Database`. A driver
declares only the capabilities that its database has: tests that need other capabilities run too, and must fail.
"""

from monasca_common.tests.contracts.storage.database import Database, FixedClock, SqlDatabase, needs
from monasca_common.tests.contracts.storage.fencing import FenceContract
from monasca_common.tests.contracts.storage.keys import KeyContract
from monasca_common.tests.contracts.storage.operating import OperationContract
from monasca_common.tests.contracts.storage.refusing import RefusalContract
from monasca_common.tests.contracts.storage.resetting import ResetContract
from monasca_common.tests.contracts.storage.writing import WriteContract

__all__ = [
    "Database",
    "FenceContract",
    "FixedClock",
    "KeyContract",
    "OperationContract",
    "RefusalContract",
    "ResetContract",
    "SqlDatabase",
    "WriteContract",
    "needs",
]
