# SPDX-License-Identifier: Apache-2.0
"""A writer as a separate process, for crash tests: ``python -m … '<json>'``.

It writes a log of lines, a log of measurements and a log of events, starting at the offset in its file ``progress``.
The file represents the commits in Kafka, which are behind the stored offsets after a crash. Lines have new message ids
in each process, so that only offsets can identify repeats. Events keep their ids, and each event is repeated in a
second partition at another time. ``mutant`` removes one guarantee; the environment arms fail points.
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
from monasca_common.storage.postgresql import staging
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sqlite import statements
from monasca_common.tests.contracts.storage.database import NOW_MS, FixedClock
from monasca_common.tests.contracts.storage.scenario import GROUP, TOPIC_ID, row

KINDS = (Kind.LOGS, Kind.METRICS, Kind.EVENTS)
_NIGHT_MS = 12 * 3_600_000


def compares_no_offsets(_writer):
    mock.patch.object(fence, "first_new", lambda claim, _stored: claim.start).start()


def _commit_after(owner, name, position):
    """Commit after each call of this function. ``position``: that of the connection in its arguments."""
    function = getattr(owner, name)

    def call_and_commit(*arguments, **named):
        result = function(*arguments, **named)
        arguments[position].execute("COMMIT")
        arguments[position].execute("BEGIN")
        return result

    mock.patch.object(owner, name, call_and_commit).start()


def stores_the_offset_in_a_transaction_of_its_own(writer):
    _commit_after(type(writer), "_store", 1)


def stores_by_id_as_if_every_row_were_new(_writer):
    mock.patch.object(staging, "note_ids", lambda connection, table, rows: list(rows)).start()
    mock.patch.dict(statements.INSERT_BY_ID, statements.INSERT_KEYED).start()


def notes_ids_in_a_transaction_of_its_own(_writer):
    _commit_after(staging, "note_ids", 0)


def write_events(writer, start, end):
    """Write each event in one partition, and in the next one as another attempt to send it, half a day later."""
    for partition in range(2):
        rows = [row(Kind.EVENTS, n, time_ms=NOW_MS + partition * _NIGHT_MS) for n in range(start, end)]
        claim = Claim(GROUP, str(Kind.EVENTS), partition, TOPIC_ID, start, end)
        ids = [b"event-%d" % n for n in range(start, end)]
        writer.write(claim, Rows(Kind.EVENTS, rows, range(start, end), ids, [True] * len(rows)))


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
                if kind is Kind.EVENTS:
                    write_events(writer, start, end)
                else:
                    rows = [row(kind, offset) for offset in range(start, end)]
                    ids = [uuid.uuid4().bytes for _ in rows]
                    claim = Claim(GROUP, str(kind), 0, TOPIC_ID, start, end)
                    writer.write(claim, Rows(kind, rows, range(start, end), ids))
                begun[kind] = end
                new = progress.with_suffix(".new")
                new.write_text(json.dumps(begun))
                os.replace(new, progress)
    print("done", flush=True)  # noqa: T201 - a test reads it


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
