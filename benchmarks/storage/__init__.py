# SPDX-License-Identifier: Apache-2.0
"""Compares storing rows (by a writer, and by the persister from a backlog) with psycopg and hand-written loops."""
