# SPDX-License-Identifier: Apache-2.0
"""Runs the migrations in the transaction of the connection that `monasca_common.storage.sql.schema` passes.

A migration declares ``oldest_program``: the revision of the oldest program that may run on the new schema. The database
stores the newest of these values, because the restriction of a migration remains after later migrations.
"""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script

from monasca_common.storage.sql.tables import oldest_program


def _note_oldest_program(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    script, connection = step.up_revision, ctx.connection
    assert isinstance(script, Script) and connection is not None
    declared = script.module.oldest_program
    stored = connection.scalar(sa.select(oldest_program.c.revision))
    connection.execute(oldest_program.delete())
    connection.execute(oldest_program.insert().values(revision=max(declared, stored or declared)))


context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,
    on_version_apply=_note_oldest_program,
)
context.run_migrations()
