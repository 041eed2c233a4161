# SPDX-License-Identifier: Apache-2.0
"""The API compared with a minimal server that gives the same answers: posts of metrics, and lists of 100,000 alarms."""
