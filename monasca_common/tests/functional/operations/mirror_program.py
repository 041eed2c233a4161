# SPDX-License-Identifier: Apache-2.0
"""A mirror in its own process, for crash tests: ``python -m … <mutant> <arguments of the command>``.

``mutant``: removes one guarantee (``none``: no guarantee). Environment variables activate fail points.
"""

import os
import signal
import sys
import uuid
from dataclasses import replace
from unittest import mock

from monasca_common.cli import main
from monasca_common.operations.mirror import mirror
from monasca_common.operations.mirror.mirror import Mirror
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC


def none():
    """Leave the mirror unchanged."""


def notes_positions_after_the_copies():
    _in_two_transactions(copies_first=True)


def notes_positions_before_the_copies():
    _in_two_transactions(copies_first=False)


def _in_two_transactions(*, copies_first):
    def copy_batch(_mirror, producer, batch, moved):
        copies = [(message.topic, mirror.copy_of(message)) for message in batch]
        noted = [(POSITIONS_TOPIC, position.record()) for position in moved.values()]
        for records in (copies, noted) if copies_first else (noted, copies):
            with producer.transaction() as transaction:
                for topic, record in records:
                    transaction.send(topic, record)
            mirror.fail_point("mirror.after_commit")

    mock.patch.object(Mirror, "_copy_batch", copy_batch).start()


def fences_nobody():
    """Give each process its own transactional id."""
    make = mirror._producer_settings
    own = uuid.uuid4().hex
    mock.patch.object(mirror, "_producer_settings", lambda *facts: replace(make(*facts), transactional_id=own)).start()
    freezes_in_its_transaction()


def freezes_in_its_transaction():
    """Stop the process (SIGSTOP) after it has sent the first copies. This is not a mutant."""
    reached = mirror.fail_point

    def freeze(name):
        if name == "mirror.before_commit":
            mock.patch.object(mirror, "fail_point", reached).start()
            os.kill(os.getpid(), signal.SIGSTOP)

    mock.patch.object(mirror, "fail_point", freeze).start()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    mock.patch.object(mirror, "_BATCH_MESSAGES", 10).start()
    sys.exit(main.main(sys.argv[2:]))
