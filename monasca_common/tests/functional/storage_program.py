# SPDX-License-Identifier: Apache-2.0
"""A writer as a process of its own, for crash tests: ``python -m … '<json>'``.

It writes a log of lines and a log of measurements, from where its file ``progress`` says that it got to, which is what
Kafka's commits would say: behind what is stored, after a crash. Its message ids are its own, so that only offsets can
tell a repeat. ``mutant`` takes one guarantee away; the environment arms fail points.
"""

import json
import os
import sys
import uuid
from pathlib import Path
from unittest import mock

from monasca_common.storage import fence
from monasca_common.storage.base import Claim, Kind, Rows
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.testing.database import FixedClock
from monasca_common.storage.testing.scenario import GROUP, TOPIC_ID, row

KINDS = (Kind.LOGS, Kind.METRICS)


def compares_no_offsets(_writer):
    mock.patch.object(fence, "first_to_store", lambda *_: 0).start()


def stores_the_offset_in_a_transaction_of_its_own(writer):
    store = type(writer)._store

    def store_and_commit(self, connection, *arguments, **named):
        stored = store(self, connection, *arguments, **named)
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        return stored

    mock.patch.object(type(writer), "_store", store_and_commit).start()


def waits_to_be_killed(writer):
    """Not a mutant: a writer that stays."""
    say("open")
    sys.stdin.read()


def say(text):
    print(text, flush=True)  # noqa: T201


def main(facts):
    settings = StorageSettings(facts["driver"], facts["connection"])
    progress = Path(facts["progress"])
    begun = json.loads(progress.read_text()) if progress.exists() else dict.fromkeys(KINDS, 0)
    with open_storage(settings, clock=FixedClock()).open_writer() as writer:
        if facts["mutant"]:
            globals()[facts["mutant"]](writer)
        for start in range(min(begun.values()), facts["length"], facts["batch"]):
            for kind in KINDS:
                end = start + facts["batch"]
                rows = [row(kind, offset) for offset in range(start, end)]
                ids = [uuid.uuid4().bytes for _ in rows]
                claim = Claim(GROUP, str(kind), 0, TOPIC_ID, start, end)
                writer.write(claim, Rows(kind, rows, range(start, end), ids))
                begun[kind] = end
                new = progress.with_suffix(".new")
                new.write_text(json.dumps(begun))
                os.replace(new, progress)
    say("done")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
