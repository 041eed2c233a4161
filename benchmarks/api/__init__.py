# SPDX-License-Identifier: Apache-2.0
"""Compares the API with a minimal server that returns the same responses: posts of metrics, and lists of 100,000
alarms."""
