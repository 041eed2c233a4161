# SPDX-License-Identifier: Apache-2.0
"""Rows of aggregation specifications."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "aggregate_specification",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("kind", "row"),
    )
