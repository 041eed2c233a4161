# SPDX-License-Identifier: Apache-2.0
"""Alembic's folder: the migrations from one schema to the next. `monasca_common.storage.sql.schema` runs them."""
