# SPDX-License-Identifier: Apache-2.0
"""The generation of series: how often series were removed. A writer forgets its cached series when it changes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    made = op.create_table(
        "series_generation",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(made, [{"id": 1, "generation": 0}])
