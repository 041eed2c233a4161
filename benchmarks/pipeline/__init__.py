# SPDX-License-Identifier: Apache-2.0
"""Compares a job with a plain Spark job that reads the same backlog."""
