# SPDX-License-Identifier: Apache-2.0
"""The API next to the smallest server with the same answers: posts of metrics, and lists of 100,000 alarms."""
