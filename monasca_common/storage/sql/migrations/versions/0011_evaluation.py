# SPDX-License-Identifier: Apache-2.0
"""What the evaluation of alarms keeps: its progress, the series it knows, windows, and partials that are staged."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
# Older programs know nothing of these tables, and write no sub-alarms.
oldest_program = "0006"

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_KEY = sa.LargeBinary(16)


def upgrade() -> None:
    op.create_table(
        "alarm_evaluator",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("evaluated_to", _BIG, nullable=False),
        sa.Column("round_to", _BIG),
        sa.Column("cursor", _NAME, nullable=False),
        sa.Column("seen", _BIG, nullable=False),
        sa.Column("horizons", _JSON, nullable=False),
        sa.Column("standstills", _JSON, nullable=False),
    )
    op.create_table(
        "alarm_series",
        sa.Column("sub_expression_id", _NAME, nullable=False),
        sa.Column("series_id", _KEY, nullable=False),
        sa.Column("match_key", _KEY, nullable=False),
        sa.Column("match_values", _JSON, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.Column("seen", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("sub_expression_id", "series_id"),
    )
    op.create_index("alarm_series_by_match", "alarm_series", ["sub_expression_id", "match_key"])
    op.create_table(
        "alarm_window",
        sa.Column("sub_expression_id", _NAME, nullable=False),
        sa.Column("match_key", _KEY, nullable=False),
        sa.Column("window_start", _BIG, nullable=False),
        sa.Column("windows", _BIG, nullable=False),
        *_of_partials(nullable=False),
        sa.PrimaryKeyConstraint("sub_expression_id", "match_key", "window_start"),
    )
    op.create_table(
        "alarm_part",
        sa.Column("alarm_id", _NAME, nullable=False),
        sa.Column("sub_expression_id", _NAME, nullable=False),
        sa.Column("match_key", _KEY, nullable=False),
        sa.PrimaryKeyConstraint("alarm_id", "sub_expression_id", "match_key"),
    )
    op.create_index("alarm_part_by_match", "alarm_part", ["sub_expression_id", "match_key"])
    op.create_table("alarm_changed", sa.Column("alarm_id", _NAME, primary_key=True))
    on_postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "alarm_staging",
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("attempt", _BIG, nullable=False),
        sa.Column("staged", _BIG, nullable=False),
        sa.Column("sub_expression_id", _NAME, nullable=False),
        sa.Column("windows", _BIG, nullable=False),
        sa.Column("match_key", _KEY, nullable=False),
        sa.Column("match_values", sa.Text, nullable=False),
        sa.Column("window_start", _BIG),
        *_of_partials(nullable=True),
        sa.Column("series_id", _KEY),
        sa.Column("dimensions", sa.Text),
        prefixes=["UNLOGGED"] if on_postgresql else [],
    )
    op.create_index("alarm_staging_by_batch", "alarm_staging", ["batch", "attempt"])
    op.add_column("sub_alarm", sa.Column("decided", _BIG, nullable=False, server_default="0"))
    op.add_column("sub_alarm", sa.Column("newest", sa.Text))


def _of_partials(*, nullable: bool) -> list[sa.Column[Any]]:
    kinds = (("record_count", _BIG), ("sums", sa.Text), ("least", sa.Double), ("greatest", sa.Double))
    return [
        sa.Column(name, kind, nullable=nullable)
        for name, kind in (*kinds, ("newest", sa.Double), ("readings", sa.Text))
    ]
