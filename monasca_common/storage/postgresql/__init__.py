# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: binary COPY into tables that are partitioned by day; any number of processes write."""

from monasca_common.storage.postgresql.storage import PostgresqlStorage

__all__ = ["PostgresqlStorage"]
