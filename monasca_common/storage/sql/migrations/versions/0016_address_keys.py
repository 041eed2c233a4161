# SPDX-License-Identifier: Apache-2.0
"""Which key the address of a notification method is encrypted with. `monasca-common db upgrade` encrypts them after it,
where there are keys, because a migration has no configuration."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
# Older programs leave the column alone. They show and use an encrypted address as it is, so keys are for newer ones.
oldest_program = "0006"


def upgrade() -> None:
    op.add_column("notification_method", sa.Column("address_key", sa.Text))
