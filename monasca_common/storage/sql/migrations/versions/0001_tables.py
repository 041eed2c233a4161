# SPDX-License-Identifier: Apache-2.0
"""The first schema: series, the four kinds of rows, and the offsets up to which rows are stored."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
# Ordered by bytes, whatever the database's locale, because lists and their pages have this order.
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_BY_DAY = "RANGE (time)"


def upgrade() -> None:
    _create_series()
    _create_alarm_history()
    _create_logs()
    _create_events()
    op.create_table(
        "kafka_offset",
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("topic_id", sa.Text),
        sa.Column("next", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "partition"),
    )


def _create_series() -> None:
    op.create_table(
        "series",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("tenant", _NAME, nullable=False),
        sa.Column("region", _NAME, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
    )
    op.create_index("series_by_name", "series", ["tenant", "name", "id"])
    op.create_index("series_by_tenant", "series", ["tenant", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("series_by_dimensions", "series", ["dimensions"], postgresql_using="gin")
    op.create_table(
        "measurements",
        sa.Column("series_id", sa.LargeBinary(16), nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("value_meta", _JSON),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("series_id", "time"),
        sqlite_with_rowid=False,
        postgresql_partition_by=_BY_DAY,
    )


def _create_alarm_history() -> None:
    op.create_table(
        "alarm_history",
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("message_id", sa.LargeBinary, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("alarm_id", sa.Text, nullable=False),
        sa.Column("alarm_definition_id", sa.Text, nullable=False),
        sa.Column("alarm_name", sa.Text, nullable=False),
        sa.Column("old_state", sa.Text, nullable=False),
        sa.Column("new_state", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("link", sa.Text),
        sa.Column("lifecycle_state", sa.Text),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("sub_alarms", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("time", "message_id"),
        postgresql_partition_by=_BY_DAY,
    )
    op.create_index("alarm_history_by_alarm", "alarm_history", ["tenant", "alarm_id", "time", "message_id"])
    op.create_index("alarm_history_by_tenant", "alarm_history", ["tenant", "time", "message_id"])


def _create_logs() -> None:
    op.create_table(
        "logs",
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("message_id", sa.LargeBinary, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.Column("fields", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("time", "message_id"),
        postgresql_partition_by=_BY_DAY,
    )
    op.create_index("logs_by_tenant", "logs", ["tenant", "time"])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("message_id", sa.LargeBinary, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("payload", _JSON, nullable=False),
        sa.Column("dimensions", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("time", "message_id"),
        postgresql_partition_by=_BY_DAY,
    )
    op.create_index("events_by_tenant", "events", ["tenant", "event_type", "time"])
