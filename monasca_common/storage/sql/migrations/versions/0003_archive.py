# SPDX-License-Identifier: Apache-2.0
"""The archive's manifest: the offsets and the hour of each file, and its state."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "archive_file",
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("hour", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("topic_id", sa.Text),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("first_offset", sa.BigInteger, nullable=False),
        sa.Column("last_offset", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("staged", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("archived", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("consumer_group", "topic", "hour", "name"),
    )
    op.create_index("archive_file_by_offset", "archive_file", ["consumer_group", "topic", "partition", "last_offset"])
