# SPDX-License-Identifier: Apache-2.0
"""Silences: whose alarms nobody is notified of for a while."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
# Older programs know nothing of this table: an older notification service sends what is silenced.
oldest_program = "0006"

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "silence",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.Column("from_ms", _BIG, nullable=False),
        sa.Column("until_ms", _BIG, nullable=False),
        sa.Column("author", _NAME, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("created_ms", _BIG, nullable=False),
    )
    op.create_index("silence_by_end", "silence", ["tenant", "until_ms"])
