# SPDX-License-Identifier: Apache-2.0
"""The common parts of the PostgreSQL and SQLite drivers: tables, migrations, queries and their reader."""
