# SPDX-License-Identifier: Apache-2.0
"""What PostgreSQL and SQLite share: tables, migrations, queries and their reader."""
