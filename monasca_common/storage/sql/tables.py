# SPDX-License-Identifier: Apache-2.0
"""The tables, for queries and for migrations. Times are integer milliseconds since the epoch (UTC).

On PostgreSQL the four kinds of rows are partitioned by day of ``time``, and JSON columns are jsonb.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

metadata = sa.MetaData()

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_BIG = sa.BigInteger()
# Text is ordered by bytes, as on SQLite and in Python, because a database's locale could order lists and pages
# differently.
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_BY_DAY = "RANGE (time)"


def _required(**kinds: Any) -> list[sa.Column[Any]]:
    """Return columns that are not NULL, by their names."""
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.LargeBinary(16), primary_key=True),
    *_required(tenant=_NAME, region=_NAME, name=_NAME, dimensions=_JSON),
    # Lists are ordered by id, and most requests have no region, so each index ends with the sort key of its list.
    sa.Index("series_by_name", "tenant", "name", "id"),
    sa.Index("series_by_tenant", "tenant", "id"),
    sa.Index("series_by_dimensions", "dimensions", postgresql_using="gin").ddl_if(dialect="postgresql"),
)

# There is no foreign key to series, because a series is written before its first measurement, and the check would take
# a third of the time.
measurements = sa.Table(
    "measurements",
    metadata,
    *_required(series_id=sa.LargeBinary(16), time=_BIG, value=sa.Double),
    sa.Column("value_meta", _JSON),
    *_required(version=_BIG),
    sa.PrimaryKeyConstraint("series_id", "time"),
    sqlite_with_rowid=False,
    postgresql_partition_by=_BY_DAY,
)

# A single row, which counts the removals of series. A writer clears its cache of series when the number changes.
series_generation = sa.Table(
    "series_generation",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    *_required(generation=_BIG),
)

alarm_history = sa.Table(
    "alarm_history",
    metadata,
    *_required(time=_BIG, message_id=sa.LargeBinary, tenant=sa.Text, alarm_id=sa.Text, alarm_definition_id=sa.Text),
    *_required(alarm_name=sa.Text, old_state=sa.Text, new_state=sa.Text, severity=sa.Text, reason=sa.Text),
    sa.Column("link", sa.Text),
    sa.Column("lifecycle_state", sa.Text),
    *_required(metrics=_JSON, sub_alarms=_JSON),
    sa.PrimaryKeyConstraint("time", "message_id"),
    sa.Index("alarm_history_by_alarm", "tenant", "alarm_id", "time", "message_id"),
    sa.Index("alarm_history_by_tenant", "tenant", "time", "message_id"),
    postgresql_partition_by=_BY_DAY,
)

logs = sa.Table(
    "logs",
    metadata,
    *_required(time=_BIG, message_id=sa.LargeBinary, tenant=sa.Text, region=sa.Text, message=sa.Text),
    *_required(dimensions=_JSON, fields=_JSON),
    sa.PrimaryKeyConstraint("time", "message_id"),
    sa.Index("logs_by_tenant", "tenant", "time"),
    postgresql_partition_by=_BY_DAY,
)

events = sa.Table(
    "events",
    metadata,
    *_required(time=_BIG, message_id=sa.LargeBinary, tenant=sa.Text, event_type=sa.Text),
    *_required(payload=_JSON, dimensions=_JSON),
    sa.PrimaryKeyConstraint("time", "message_id"),
    sa.Index("events_by_tenant", "tenant", "event_type", "time"),
    postgresql_partition_by=_BY_DAY,
)


def _by_id(table: str) -> sa.Table:
    """Return the table of the ids and times of those rows of ``table`` that are identified only by their message id
    (`Rows.by_id`). An id is written in the transaction of its row, and removed with the row. The table is not
    partitioned, because an id must be found on any day."""
    name = f"{table}_by_id"
    return sa.Table(
        name,
        metadata,
        sa.Column("message_id", sa.LargeBinary, primary_key=True),
        *_required(time=_BIG),
        sa.Index(f"{name}_by_time", "time"),
        sqlite_with_rowid=False,
    )


logs_by_id = _by_id("logs")
events_by_id = _by_id("events")

kafka_offset = sa.Table(
    "kafka_offset",
    metadata,
    *_required(consumer_group=sa.Text, topic=sa.Text, partition=sa.Integer),
    sa.Column("topic_id", sa.Text),
    *_required(next=_BIG),
    sa.PrimaryKeyConstraint("consumer_group", "topic", "partition"),
)


def _of_partials() -> list[sa.Column[Any]]:
    """Return the columns of a partial, the state of one group in one window: `monasca_common.pipeline.Partial`.

    ``sums``: floats, separated by spaces; concatenating two texts adds them. ``group_id``: a hash of ``group_values``,
    which may be long."""
    reading = {"timestamp": sa.Double, "partition": sa.Integer, "offset": _BIG, "value": sa.Double}
    return [
        *_required(specification=sa.Text, window_start=_BIG, group_id=sa.LargeBinary(16), group_values=sa.Text),
        *_required(record_count=_BIG, sums=sa.Text, least=sa.Double, greatest=sa.Double),
        *_required(**{f"{end}_{name}": kind for end in ("oldest", "latest") for name, kind in reading.items()}),
    ]


aggregate_usage = sa.Table(
    "aggregate_usage",
    metadata,
    *_required(job=sa.Text),
    *_of_partials(),
    sa.PrimaryKeyConstraint("job", "specification", "window_start", "group_id"),
)

# Partials from executors, for a range that is not accounted for yet. They are useless after a crash, so PostgreSQL does
# not log this table (UNLOGGED).
aggregate_staging = sa.Table(
    "aggregate_staging",
    metadata,
    *_required(batch=sa.Text, attempt=_BIG, staged=_BIG),
    *_of_partials(),
    sa.Index("aggregate_staging_by_batch", "batch", "attempt"),
)

# The outbox of periods: a period must be published while its version is greater than the published version.
aggregate_period = sa.Table(
    "aggregate_period",
    metadata,
    *_required(job=sa.Text, specification=sa.Text, period_start=_BIG),
    *_required(version=_BIG, published=_BIG, provisional=sa.Boolean),
    sa.PrimaryKeyConstraint("job", "specification", "period_start"),
)

# The archive's manifest. A file is *committed* with the offsets of its batch, *placed* once readers can find it, and
# *expired* from the time when its hour is too old until the file is removed.
archive_file = sa.Table(
    "archive_file",
    metadata,
    *_required(consumer_group=sa.Text, topic=sa.Text, hour=_BIG, name=sa.Text),
    sa.Column("topic_id", sa.Text),
    *_required(partition=sa.Integer, first_offset=_BIG, last_offset=_BIG, records=_BIG, bytes=_BIG),
    *_required(batch=sa.Text, staged=sa.Text, state=sa.Text, archived=_BIG),
    sa.PrimaryKeyConstraint("consumer_group", "topic", "hour", "name"),
    sa.Index("archive_file_by_offset", "consumer_group", "topic", "partition", "last_offset"),
)

# The state and the last batch of each job, which are used only for reports.
pipeline_job = sa.Table(
    "pipeline_job",
    metadata,
    *_required(consumer_group=sa.Text, topic=sa.Text, started=_BIG, seen=_BIG),
    sa.Column("stopped", _BIG),
    sa.Column("batch_ended", _BIG),
    sa.Column("batch_seconds", sa.Double),
    sa.Column("batch_offsets", _BIG),
    sa.Column("batch_records", _BIG),
    sa.PrimaryKeyConstraint("consumer_group", "topic"),
)

# A single row. A transaction that changes a definition or deletes an alarm increments it first. It therefore waits for
# transactions that compute with definitions, because these lock this row.
alarm_definitions_version = sa.Table(
    "alarm_definitions_version",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    *_required(version=_BIG),
)

# ``address_key``: the name of the key that encrypts ``address``, or NULL if ``address`` is plain text.
notification_method = sa.Table(
    "notification_method",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(tenant=_NAME, name=_NAME, type=_NAME, address=_NAME),
    sa.Column("address_key", sa.Text),
    *_required(period=sa.Integer, created=_BIG, updated=_BIG),
    sa.Index("notification_method_by_name", "tenant", "name", unique=True),
)

alarm_definition = sa.Table(
    "alarm_definition",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(tenant=_NAME, name=_NAME, description=sa.Text, expression=sa.Text, deterministic=sa.Boolean),
    *_required(match_by=_JSON, severity=_NAME, actions_enabled=sa.Boolean, created=_BIG, updated=_BIG),
    sa.Index("alarm_definition_by_name", "tenant", "name", unique=True),
)

# ``id`` stays the same when the definition changes. ``windows`` increases when the windows restart, because the
# function, the period or the number of periods has changed.
alarm_sub_expression = sa.Table(
    "alarm_sub_expression",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(definition_id=_NAME, position=sa.Integer, function=sa.Text, metric_name=_NAME, dimensions=_JSON),
    *_required(deterministic=sa.Boolean, operator=sa.Text, threshold=sa.Double),
    *_required(period=sa.Integer, periods=sa.Integer, windows=_BIG),
    sa.Index("alarm_sub_expression_by_definition", "definition_id", "position", unique=True),
)

# The notification methods that are used when an alarm of the definition enters ``state``, in order.
alarm_action = sa.Table(
    "alarm_action",
    metadata,
    *_required(definition_id=_NAME, state=sa.Text, position=sa.Integer, method_id=_NAME),
    sa.PrimaryKeyConstraint("definition_id", "state", "position"),
    sa.Index("alarm_action_by_method", "method_id"),
)

# An alarm is created once every sub-expression of its definition has a series. ``match_key``: a hash of
# ``match_values``, the values of the definition's match_by in its order.
alarm = sa.Table(
    "alarm",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(tenant=_NAME, definition_id=_NAME, match_key=sa.LargeBinary(16), match_values=_JSON, state=_NAME),
    sa.Column("lifecycle_state", _NAME),
    sa.Column("link", _NAME),
    *_required(state_updated=_BIG, updated=_BIG, created=_BIG),
    sa.Column("evaluated_from", _BIG, nullable=False, server_default="0"),
    sa.Index("alarm_by_match", "definition_id", "match_key", unique=True),
    # Each index ends with the id, which orders equal values.
    sa.Index("alarm_by_tenant", "tenant", "id"),
    sa.Index("alarm_by_definition", "tenant", "definition_id", "id"),
    # Queries that count by any of these columns, and by fields of the definition, read only this index.
    sa.Index("alarm_by_group", "tenant", "definition_id", "state", "lifecycle_state"),
    sa.Index("alarm_by_state", "tenant", "state", "id"),
    sa.Index("alarm_by_lifecycle_state", "tenant", "lifecycle_state", "id"),
    sa.Index("alarm_by_link", "tenant", "link", "id"),
    sa.Index("alarm_by_state_updated", "tenant", "state_updated", "id"),
    sa.Index("alarm_by_updated", "tenant", "updated", "id"),
    sa.Index("alarm_by_created", "tenant", "created", "id"),
)

# The series of an alarm, with their text, because the table of series can be in another database.
alarm_metric = sa.Table(
    "alarm_metric",
    metadata,
    *_required(alarm_id=_NAME, series_id=sa.LargeBinary(16), tenant=_NAME, name=_NAME, dimensions=_JSON),
    sa.PrimaryKeyConstraint("alarm_id", "series_id"),
    sa.Index("alarm_metric_by_name", "tenant", "name", "alarm_id"),
)

# The dimensions of `alarm_metric` as rows, because a filter or count on JSON would read every row of a tenant.
alarm_dimension = sa.Table(
    "alarm_dimension",
    metadata,
    *_required(alarm_id=_NAME, series_id=sa.LargeBinary(16), name=_NAME, value=_NAME, metric_name=_NAME, tenant=_NAME),
    sa.PrimaryKeyConstraint("alarm_id", "series_id", "name"),
    # The indexes contain the columns that counts read. They end with the alarm, because an alarm that has a dimension
    # in several metrics is counted once. No index contains the metric's name, because an entry could then exceed
    # PostgreSQL's limit of 2704 bytes.
    sa.Index("alarm_dimension_by_pair", "tenant", "name", "value", "alarm_id"),
    sa.Index("alarm_dimension_by_value", "tenant", "value", "alarm_id"),
    sa.Index("alarm_dimension_by_name", "tenant", "name", "alarm_id"),
    sqlite_with_rowid=False,
)

# The state of each sub-expression in each alarm. ``windows``: the value of ``alarm_sub_expression.windows`` to which
# the state belongs. ``empty_evaluations``: the number of consecutive evaluations without a measurement. ``decided``:
# the end of the latest window that a crossing of the threshold decided. ``newest``: the reading that decided the
# function ``last``, as in ``alarm_window.readings``.
sub_alarm = sa.Table(
    "sub_alarm",
    metadata,
    *_required(alarm_id=_NAME, sub_expression_id=_NAME, state=sa.Text, current_values=_JSON),
    *_required(windows=_BIG, empty_evaluations=sa.Integer),
    sa.Column("decided", _BIG, nullable=False, server_default="0"),
    sa.Column("newest", sa.Text),
    sa.PrimaryKeyConstraint("alarm_id", "sub_expression_id"),
    sa.Index("sub_alarm_by_sub_expression", "sub_expression_id"),
)


def _of_windows(*, nullable: bool) -> list[sa.Column[Any]]:
    """Return the columns of a partial of one window: `monasca_common.alarms.partials.WindowPartial`.

    ``sums``: floats, separated by spaces. ``readings``: the deciding readings, each ``time,partition,offset,value``,
    separated by spaces. Concatenating two texts adds both."""
    kinds = (("record_count", _BIG), ("sums", sa.Text), ("least", sa.Double), ("greatest", sa.Double))
    return [
        sa.Column(name, kind, nullable=nullable)
        for name, kind in (*kinds, ("newest", sa.Double), ("readings", sa.Text))
    ]


# The state of an evaluator. Each of its transactions changes this row first. ``pass_to``: the end of the current
# evaluation pass; ``cursor``: the last alarm that this pass has evaluated. ``seen``: the greatest watermark.
# ``delay``: the delay in ms; windows that ended this long before ``evaluated_to`` are decided.
alarm_evaluator = sa.Table(
    "alarm_evaluator",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    *_required(evaluated_to=_BIG),
    sa.Column("pass_to", _BIG),
    *_required(cursor=_NAME, seen=_BIG, watermarks=_JSON, idle_periods=_JSON, delay=_BIG),
    sa.Column("topic_id", sa.Text),
)

# The series that belong to a sub-expression. ``match_key``: a hash of ``match_values``, the series' values of the
# definition's match_by.
alarm_series = sa.Table(
    "alarm_series",
    metadata,
    *_required(sub_expression_id=_NAME, series_id=sa.LargeBinary(16), match_key=sa.LargeBinary(16)),
    *_required(match_values=_JSON, dimensions=_JSON, seen=_BIG),
    sa.PrimaryKeyConstraint("sub_expression_id", "series_id"),
    sa.Index("alarm_series_by_match", "sub_expression_id", "match_key"),
)

# The measurements of a sub-expression's series with equal match values, by window. The function ``last`` has one row
# with window 0 and the readings that are not evaluated yet. ``windows``: the value of ``alarm_sub_expression.windows``
# to which the row belongs.
alarm_window = sa.Table(
    "alarm_window",
    metadata,
    *_required(sub_expression_id=_NAME, match_key=sa.LargeBinary(16), window_start=_BIG, windows=_BIG),
    *_of_windows(nullable=False),
    sa.PrimaryKeyConstraint("sub_expression_id", "match_key", "window_start"),
)

# The match keys whose windows make up a sub-alarm; several, if series have only some dimensions of match_by.
alarm_part = sa.Table(
    "alarm_part",
    metadata,
    *_required(alarm_id=_NAME, sub_expression_id=_NAME, match_key=sa.LargeBinary(16)),
    sa.PrimaryKeyConstraint("alarm_id", "sub_expression_id", "match_key"),
    sa.Index("alarm_part_by_match", "sub_expression_id", "match_key"),
)

# Alarms that the next pass evaluates although none of their windows is due.
alarm_changed = sa.Table("alarm_changed", metadata, sa.Column("alarm_id", _NAME, primary_key=True))

# The results of executors for a range that is not accounted for yet: partials (without ``series_id``), and series
# (without ``window_start``). After a crash they are useless, so PostgreSQL does not log this table (UNLOGGED).
alarm_staging = sa.Table(
    "alarm_staging",
    metadata,
    *_required(batch=sa.Text, attempt=_BIG, staged=_BIG, sub_expression_id=_NAME, windows=_BIG),
    *_required(match_key=sa.LargeBinary(16), match_values=sa.Text),
    sa.Column("window_start", _BIG),
    *_of_windows(nullable=True),
    sa.Column("series_id", sa.LargeBinary(16)),
    sa.Column("dimensions", sa.Text),
    sa.Column("received", _BIG),
    sa.Index("alarm_staging_by_batch", "batch", "attempt"),
)

# Transitions to publish, written in the transaction of their cause, and removed once Kafka has acknowledged them.
# ``key``: the id of the alarm.
alarm_outbox = sa.Table(
    "alarm_outbox",
    metadata,
    sa.Column("number", _BIG.with_variant(sa.Integer(), "sqlite"), primary_key=True),
    *_required(key=sa.Text, message_id=sa.LargeBinary, value=sa.LargeBinary),
)

# The notification ledger. ``state``: ``sending`` before an attempt, then ``sent``, ``failed`` (another attempt
# follows), ``given up`` or ``superseded``. ``repeats``: attempts after one whose outcome is unknown because of a crash,
# so the receiver may have received the notification twice. ``reason``: the receiver's response, or the reason why the
# notification was not sent. ``failures``: a line of JSON for each failed attempt. ``change``: the messages of the
# alarm's changes, one per line, compressed with zlib.
notification = sa.Table(
    "notification",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(tenant=_NAME, alarm_id=_NAME, method_id=_NAME, new_state=_NAME),
    *_required(alarm_time=_BIG, state=sa.Text, attempts=sa.Integer, repeats=sa.Integer),
    sa.Column("reason", sa.Text),
    *_required(created=_BIG, updated=_BIG),
    sa.Column("definition_id", _NAME),
    sa.Column("change", sa.LargeBinary),
    sa.Column("failures", sa.Text),
    sa.Index("notification_by_age", "updated"),
    sa.Index("notification_by_tenant", "tenant", "created"),
    sa.Index("notification_by_alarm", "tenant", "alarm_id", "created"),
    sa.Index("notification_by_method", "tenant", "method_id", "created"),
    sa.Index("notification_by_time", "alarm_id", "alarm_time"),
)

# Notifications that are not sent now. ``kind``: a state of the ledger (``silenced``, ``inhibited``, ``held``);
# ``repeat``, with the id of the first notification in ``notification_id`` and a count in ``number``; or ``scheduled``,
# a retry, with the number of the attempt in ``number``. ``due``: the time of its publication or next decision.
# ``group_key``: notifications with an equal key are sent in one message; ``message_id``: the id of that message, once
# its members are fixed, or of the claim of a retry.
notification_deferred = sa.Table(
    "notification_deferred",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(notification_id=_NAME, tenant=_NAME, method_id=_NAME, kind=_NAME, group_key=_NAME, message_id=_NAME),
    *_required(number=sa.Integer, due=_BIG, created=_BIG, size=sa.Integer, value=sa.LargeBinary),
    sa.Index("notification_deferred_by_due", "due"),
    sa.Index("notification_deferred_by_tenant", "tenant", "kind"),
    sa.Index("notification_deferred_by_group", "group_key", "created"),
    sa.Index("notification_deferred_by_message", "message_id"),
)

# The current minute of each method with a rate limit: its start, and the number of messages sent in it.
notification_rate = sa.Table(
    "notification_rate",
    metadata,
    sa.Column("method_id", _NAME, primary_key=True),
    *_required(since_ms=_BIG, count=sa.Integer),
)

# A silence suppresses the notifications of alarms with a metric that has all ``dimensions``.
silence = sa.Table(
    "silence",
    metadata,
    sa.Column("id", _NAME, primary_key=True),
    *_required(tenant=_NAME, dimensions=_JSON, from_ms=_BIG, until_ms=_BIG),
    *_required(author=_NAME, comment=sa.Text, created_ms=_BIG),
    sa.Index("silence_by_end", "tenant", "until_ms"),
)

# A single row: the oldest revision of a program that may run on the database.
oldest_program = sa.Table("oldest_program", metadata, sa.Column("revision", sa.Text, primary_key=True))
