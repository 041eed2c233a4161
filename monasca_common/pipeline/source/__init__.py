# SPDX-License-Identifier: Apache-2.0
"""The input of a job: a topic, its offsets in the database, and the ranges of a batch."""
