# SPDX-License-Identifier: Apache-2.0
"""The delay of evaluations, beside the time up to which alarms are evaluated: both together say what is decided."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
# Older programs leave it empty, and evaluate with the delay of their configuration.
oldest_program = "0006"


def upgrade() -> None:
    op.add_column("alarm_evaluator", sa.Column("delay", sa.BigInteger()))
