# SPDX-License-Identifier: Apache-2.0
"""The job `backfill`: it computes a past time of `aggregate` again."""
