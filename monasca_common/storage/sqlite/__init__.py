# SPDX-License-Identifier: Apache-2.0
"""SQLite: an embedded database with one writer at a time and concurrent readers."""

from monasca_common.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
