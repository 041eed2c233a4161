# SPDX-License-Identifier: Apache-2.0
"""Storing rows compared with psycopg and hand-written loops: by a writer, and by the persister from a backlog."""
