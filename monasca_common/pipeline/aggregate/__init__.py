# SPDX-License-Identifier: Apache-2.0
"""The job `aggregate`, which computes hourly and daily aggregates of metrics."""
