# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.silences_contract import SilencesContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestSilences(SilencesContract, SqliteTestCase):
    pass
