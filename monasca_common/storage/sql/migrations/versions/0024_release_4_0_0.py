# SPDX-License-Identifier: Apache-2.0
"""The schema of release 4.0.0: every table of `monasca_common.storage.sql.tables`.

The first migration after that release must copy these tables into this file, so that later changes of the module do not
alter this migration.
"""

import sqlalchemy as sa
from alembic import op

from monasca_common.storage.sql.tables import alarm_definitions_version, metadata, series_generation

revision = "0024"
down_revision = None
oldest_program = "0024"

# Rows of these tables are useless after a crash, so PostgreSQL need not log them.
_STAGING = ("aggregate_staging", "alarm_staging")


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=False)
    connection.execute(sa.insert(series_generation).values(id=1, generation=0))
    connection.execute(sa.insert(alarm_definitions_version).values(id=1, version=0))
    if connection.dialect.name == "postgresql":
        for table in _STAGING:
            op.execute(f"ALTER TABLE {table} SET UNLOGGED")
