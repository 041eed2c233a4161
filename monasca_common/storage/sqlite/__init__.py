# SPDX-License-Identifier: Apache-2.0
"""SQLite: embedded, one process writes, readers at the same time."""

from monasca_common.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
