# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.answers_contract import AnswersContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestAnswersFromSqlite(AnswersContract, SqliteTestCase):
    pass
