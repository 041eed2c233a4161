# SPDX-License-Identifier: Apache-2.0
"""Evaluates the thresholds of alarms."""
