# SPDX-License-Identifier: Apache-2.0
"""Rows into databases, beside psycopg and loops by hand: by a writer, and by the persister from a backlog."""
