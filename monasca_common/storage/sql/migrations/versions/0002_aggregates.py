# SPDX-License-Identifier: Apache-2.0
"""Aggregates: the partials of each group and window, the staging table, and the periods to publish."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "aggregate_usage",
        sa.Column("job", sa.Text, nullable=False),
        *_of_partials(),
        sa.PrimaryKeyConstraint("job", "specification", "window_start", "group_id"),
    )
    on_postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "aggregate_staging",
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("staged", sa.BigInteger, nullable=False),
        *_of_partials(),
        prefixes=["UNLOGGED"] if on_postgresql else [],
    )
    op.create_index("aggregate_staging_by_batch", "aggregate_staging", ["batch", "attempt"])
    op.create_table(
        "aggregate_period",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("specification", sa.Text, nullable=False),
        sa.Column("period_start", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("provisional", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("job", "specification", "period_start"),
    )


def _of_partials() -> list[sa.Column[Any]]:
    kinds = (("timestamp", sa.Double), ("partition", sa.Integer), ("offset", sa.BigInteger), ("value", sa.Double))
    return [
        sa.Column("specification", sa.Text, nullable=False),
        sa.Column("window_start", sa.BigInteger, nullable=False),
        sa.Column("group_id", sa.LargeBinary(16), nullable=False),
        sa.Column("group_values", sa.Text, nullable=False),
        sa.Column("record_count", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.Text, nullable=False),
        sa.Column("least", sa.Double, nullable=False),
        sa.Column("greatest", sa.Double, nullable=False),
        *(sa.Column(f"{end}_{name}", kind, nullable=False) for end in ("oldest", "latest") for name, kind in kinds),
    ]
