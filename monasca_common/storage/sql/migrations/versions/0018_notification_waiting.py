# SPDX-License-Identifier: Apache-2.0
"""Retries of notifications that are not due yet."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
# Older programs know nothing of this table: what waits there is sent once a newer one runs again.
oldest_program = "0006"

_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notification_waiting",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("due", _BIG, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_index("notification_waiting_by_due", "notification_waiting", ["due"])
