# SPDX-License-Identifier: Apache-2.0
"""The ledger of notifications: what is being sent, and what was."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
# Older programs know nothing of this table.
oldest_program = "0006"

_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notification",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("alarm_id", _NAME, nullable=False),
        sa.Column("method_id", _NAME, nullable=False),
        sa.Column("new_state", _NAME, nullable=False),
        sa.Column("alarm_time", _BIG, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("repeats", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created", _BIG, nullable=False),
        sa.Column("updated", _BIG, nullable=False),
    )
