# SPDX-License-Identifier: Apache-2.0
"""Notifications that are not sent now, and the minute of each method that has a limit."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
# Older programs know nothing of these tables: an older notification service sends what is held here in any case.
oldest_program = "0006"

_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "notification_held",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("notice_id", _NAME, nullable=False),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("method_id", _NAME, nullable=False),
        sa.Column("kind", _NAME, nullable=False),
        sa.Column("group_key", _NAME, nullable=False),
        sa.Column("sealed", _NAME, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("due", _BIG, nullable=False),
        sa.Column("created", _BIG, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_index("notification_held_by_due", "notification_held", ["due"])
    op.create_index("notification_held_by_tenant", "notification_held", ["tenant", "kind"])
    op.create_index("notification_held_by_group", "notification_held", ["group_key", "created"])
    op.create_index("notification_held_by_message", "notification_held", ["sealed"])
    op.create_index("notification_by_time", "notification", ["alarm_id", "alarm_time"])
    op.create_table(
        "notification_rate",
        sa.Column("method_id", _NAME, primary_key=True),
        sa.Column("since_ms", _BIG, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
    )
