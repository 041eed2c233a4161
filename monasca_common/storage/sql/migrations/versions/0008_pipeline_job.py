# SPDX-License-Identifier: Apache-2.0
"""Whether each job of the pipeline runs, and its last batch."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
# Jobs of older programs go on, and `pipeline status` cannot say whether they run.
oldest_program = "0006"


def upgrade() -> None:
    op.create_table(
        "pipeline_job",
        sa.Column("consumer_group", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("stopped", sa.BigInteger),
        sa.Column("batch_ended", sa.BigInteger),
        sa.Column("batch_seconds", sa.Double),
        sa.Column("batch_offsets", sa.BigInteger),
        sa.Column("batch_records", sa.BigInteger),
        sa.PrimaryKeyConstraint("consumer_group", "topic"),
    )
