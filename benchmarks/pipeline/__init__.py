# SPDX-License-Identifier: Apache-2.0
"""Compares jobs with plain Spark jobs: backlogs, small batches, and growing load."""
