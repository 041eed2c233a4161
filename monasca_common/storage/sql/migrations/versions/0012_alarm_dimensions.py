# SPDX-License-Identifier: Apache-2.0
"""Each dimension of an alarm's metrics as a row, and an index of alarms by what counts group."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
# Older programs write no metrics of alarms. They delete an alarm without its dimensions, so the evaluator starts last.
oldest_program = "0006"

_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_PAIRS = {"postgresql": "jsonb_each_text(m.dimensions)", "sqlite": "json_each(m.dimensions)"}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    op.create_table(
        "alarm_dimension",
        sa.Column("alarm_id", _NAME, nullable=False),
        sa.Column("series_id", sa.LargeBinary(16), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("value", _NAME, nullable=False),
        sa.Column("metric_name", _NAME, nullable=False),
        sa.Column("tenant", _NAME, nullable=False),
        sa.PrimaryKeyConstraint("alarm_id", "series_id", "name"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO alarm_dimension (alarm_id, series_id, name, value, metric_name, tenant) "
        "SELECT m.alarm_id, m.series_id, pair.key, pair.value, m.name, m.tenant "
        f"FROM alarm_metric AS m, {_PAIRS[dialect]} AS pair"
    )
    op.create_index("alarm_dimension_by_pair", "alarm_dimension", ["tenant", "name", "value", "alarm_id"])
    op.create_index("alarm_dimension_by_value", "alarm_dimension", ["tenant", "value", "alarm_id"])
    op.create_index("alarm_dimension_by_name", "alarm_dimension", ["tenant", "name", "alarm_id"])
    op.create_index("alarm_by_group", "alarm", ["tenant", "definition_id", "state", "lifecycle_state"])
    if dialect == "postgresql":
        op.drop_index("alarm_metric_by_dimensions", "alarm_metric")
