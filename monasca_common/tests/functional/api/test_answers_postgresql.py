# SPDX-License-Identifier: Apache-2.0
"""The size of responses from a real PostgreSQL, and the memory of a process that sends them."""

import json
import subprocess
import sys

import psycopg

from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.api.test_answers import AnswersContract
from monasca_common.tests.waiting import PATIENCE_SECONDS

_MIB = 1024 * 1024
_LONG_SERIES = 400
_LONG_BYTES = 400_000  # dimensions as large as they could be before the limit: 160 MB in total

_FILL = f"""INSERT INTO series SELECT substring(sha256(n::text::bytea) FOR 16), 'tenant', 'region', 'long',
    jsonb_build_object('n', n::text, 'note', repeat('x', {_LONG_BYTES})) FROM generate_series(1, {_LONG_SERIES}) AS n"""
_READ = """
import json, re, sys
from falcon import testing
from monasca_common.api import paging
from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.storage import open_storage
from monasca_common.storage.settings import StorageSettings

kafka = MemoryKafka()
kafka.setUp()
reader = open_storage(StorageSettings("postgresql", sys.argv[1])).open_reader()
settings = ApiSettings(auth_strategy="noauth")
paging.MAX_ANSWER_BYTES = int(sys.argv[2])
producers = ProducerPool(lambda _: kafka.producer())
client = testing.TestClient(make_app(settings, producers, reader))

def read(query):
    answer = client.simulate_get("/v2.0/metrics", query_string=query, headers={"X-Project-Id": "tenant"})
    return len(answer.content), len(answer.json["elements"])

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])

read("name=none")
before = peak()
size, elements = read("name=long")
print(json.dumps([size, elements, peak() - before]))
reader.close()
kafka.cleanUp()
"""


@periodic("second dialect; the unit tests compare the responses from SQLite")
class TestAnswersFromPostgresql(AnswersContract, PostgresqlTestCase):
    pass


@periodic("a measurement of memory")
class TestMemory(PostgresqlTestCase):
    def test_memory_of_a_page_does_not_depend_on_the_number_of_stored_rows(self):
        url = self.database.settings.connection
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as session:
            session.execute(_FILL)
        command = [sys.executable, "-c", _READ, url, str(4 * _MIB)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        size, elements, grown = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((True, 10), (size <= 4 * _MIB + 1024, elements))
        self.assertLess(grown, _LONG_SERIES * _LONG_BYTES // 2)
