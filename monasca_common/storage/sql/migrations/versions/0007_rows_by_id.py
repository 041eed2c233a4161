# SPDX-License-Identifier: Apache-2.0
"""The ids of logs and events that are one row whatever the time of each attempt to send them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
# They go on without these tables: what they store is not noted here, so a repeat of it may be a second row.
oldest_program = "0006"


def upgrade() -> None:
    for name in ("logs_by_id", "events_by_id"):
        op.create_table(
            name,
            sa.Column("message_id", sa.LargeBinary, primary_key=True),
            sa.Column("time", sa.BigInteger, nullable=False),
            sqlite_with_rowid=False,
        )
        op.create_index(f"{name}_by_time", name, ["time"])
