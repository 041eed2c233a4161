# SPDX-License-Identifier: Apache-2.0
"""The oldest program that may run on the database: from here on each step declares it as ``oldest_program``."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
# Older programs only compare revisions: stop them, upgrade, and start the new ones.
oldest_program = "0006"


def upgrade() -> None:
    op.create_table("oldest_program", sa.Column("revision", sa.Text, primary_key=True))
