# SPDX-License-Identifier: Apache-2.0
"""Alarm definitions, alarms and notification methods, and what the API tells others of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
# Older programs know nothing of these tables.
oldest_program = "0006"

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_BIG = sa.BigInteger()
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    made = op.create_table(
        "alarm_definitions_version",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("version", _BIG, nullable=False),
    )
    op.bulk_insert(made, [{"id": 1, "version": 0}])
    op.create_table(
        "notification_method",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("type", _NAME, nullable=False),
        sa.Column("address", _NAME, nullable=False),
        sa.Column("period", sa.Integer, nullable=False),
        sa.Column("created", _BIG, nullable=False),
        sa.Column("updated", _BIG, nullable=False),
    )
    op.create_index("notification_method_by_name", "notification_method", ["tenant", "name"], unique=True)
    op.create_table(
        "alarm_definition",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("expression", sa.Text, nullable=False),
        sa.Column("deterministic", sa.Boolean, nullable=False),
        sa.Column("match_by", _JSON, nullable=False),
        sa.Column("severity", _NAME, nullable=False),
        sa.Column("actions_enabled", sa.Boolean, nullable=False),
        sa.Column("created", _BIG, nullable=False),
        sa.Column("updated", _BIG, nullable=False),
        sa.Column("version", _BIG, nullable=False),
    )
    op.create_index("alarm_definition_by_name", "alarm_definition", ["tenant", "name"], unique=True)
    op.create_index("alarm_definition_by_version", "alarm_definition", ["version"])
    op.create_table(
        "alarm_sub_expression",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("definition_id", _NAME, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("function", sa.Text, nullable=False),
        sa.Column("metric_name", _NAME, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.Column("deterministic", sa.Boolean, nullable=False),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("threshold", sa.Double, nullable=False),
        sa.Column("period", sa.Integer, nullable=False),
        sa.Column("periods", sa.Integer, nullable=False),
        sa.Column("windows", _BIG, nullable=False),
    )
    op.create_index(
        "alarm_sub_expression_by_definition", "alarm_sub_expression", ["definition_id", "position"], unique=True
    )
    op.create_table(
        "alarm_action",
        sa.Column("definition_id", _NAME, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("method_id", _NAME, nullable=False),
        sa.PrimaryKeyConstraint("definition_id", "state", "position"),
    )
    op.create_index("alarm_action_by_method", "alarm_action", ["method_id"])
    op.create_table(
        "alarm",
        sa.Column("id", _NAME, primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("definition_id", _NAME, nullable=False),
        sa.Column("match_key", sa.LargeBinary(16), nullable=False),
        sa.Column("match_values", _JSON, nullable=False),
        sa.Column("state", _NAME, nullable=False),
        sa.Column("lifecycle_state", _NAME),
        sa.Column("link", _NAME),
        sa.Column("state_updated", _BIG, nullable=False),
        sa.Column("updated", _BIG, nullable=False),
        sa.Column("created", _BIG, nullable=False),
        sa.Column("version", _BIG, nullable=False),
    )
    op.create_index("alarm_by_match", "alarm", ["definition_id", "match_key"], unique=True)
    op.create_index("alarm_by_tenant", "alarm", ["tenant", "id"])
    op.create_index("alarm_by_definition", "alarm", ["tenant", "definition_id", "id"])
    op.create_index("alarm_by_state", "alarm", ["tenant", "state", "id"])
    op.create_index("alarm_by_lifecycle_state", "alarm", ["tenant", "lifecycle_state", "id"])
    op.create_index("alarm_by_link", "alarm", ["tenant", "link", "id"])
    op.create_index("alarm_by_state_updated", "alarm", ["tenant", "state_updated", "id"])
    op.create_index("alarm_by_updated", "alarm", ["tenant", "updated", "id"])
    op.create_index("alarm_by_created", "alarm", ["tenant", "created", "id"])
    op.create_table(
        "alarm_metric",
        sa.Column("alarm_id", _NAME, nullable=False),
        sa.Column("series_id", sa.LargeBinary(16), nullable=False),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("alarm_id", "series_id"),
    )
    op.create_index("alarm_metric_by_name", "alarm_metric", ["tenant", "name", "alarm_id"])
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("alarm_metric_by_dimensions", "alarm_metric", ["dimensions"], postgresql_using="gin")
    op.create_table(
        "sub_alarm",
        sa.Column("alarm_id", _NAME, nullable=False),
        sa.Column("sub_expression_id", _NAME, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("current_values", _JSON, nullable=False),
        sa.Column("windows", _BIG, nullable=False),
        sa.Column("empty_evaluations", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("alarm_id", "sub_expression_id"),
    )
    op.create_index("sub_alarm_by_sub_expression", "sub_alarm", ["sub_expression_id"])
    op.create_table(
        "alarm_outbox",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("message_id", sa.LargeBinary, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("created", _BIG, nullable=False),
    )
