# SPDX-License-Identifier: Apache-2.0
"""The job `aggregate`: it computes aggregates of each hour and day from metrics."""
