# SPDX-License-Identifier: Apache-2.0
"""An index of the ledger of notifications by age, which its retention reads."""

from alembic import op

revision = "0014"
down_revision = "0013"
# Older programs read and write the table as before.
oldest_program = "0006"


def upgrade() -> None:
    op.create_index("notification_by_age", "notification", ["updated"])
