# SPDX-License-Identifier: Apache-2.0
"""The API, beside the least that answers alike: posts of metrics, and lists of 100,000 alarms."""
