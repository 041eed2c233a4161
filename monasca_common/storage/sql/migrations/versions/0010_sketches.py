# SPDX-License-Identifier: Apache-2.0
"""What operations of other packages keep of the quantities of a partial."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
# Older programs know no such operation, and leave the column null.
oldest_program = "0006"


def upgrade() -> None:
    for table in ("aggregate_usage", "aggregate_staging"):
        op.add_column(table, sa.Column("sketch", sa.Text))
