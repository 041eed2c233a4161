# SPDX-License-Identifier: Apache-2.0
"""The ledger of notifications can be read by its tenants, and what it holds can be sent again."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
# Older programs leave these columns empty: what they sent is listed, and cannot be sent again by a command.
oldest_program = "0006"

_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("notification", sa.Column("definition_id", _NAME))
    op.add_column("notification", sa.Column("change", sa.LargeBinary))
    op.add_column("notification", sa.Column("failures", sa.Text))
    op.create_index("notification_by_tenant", "notification", ["tenant", "created"])
    op.create_index("notification_by_alarm", "notification", ["tenant", "alarm_id", "created"])
    op.create_index("notification_by_method", "notification", ["tenant", "method_id", "created"])
