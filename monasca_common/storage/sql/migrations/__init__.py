# SPDX-License-Identifier: Apache-2.0
"""Alembic's folder: the steps from one schema to the next. `monasca_common.storage.sql.schema` runs them."""
