# SPDX-License-Identifier: Apache-2.0
"""Rows into databases next to psycopg and hand-written loops: by a writer, and by the persister from a backlog."""
