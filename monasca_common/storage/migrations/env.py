# SPDX-License-Identifier: Apache-2.0
"""Runs the steps within the transaction of the connection that `monasca_common.storage.schema` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
