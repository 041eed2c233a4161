# SPDX-License-Identifier: Apache-2.0
"""The job `backfill`, which recomputes aggregates of a past time range."""
