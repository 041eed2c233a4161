# SPDX-License-Identifier: Apache-2.0
"""Alarms: expressions, definitions and the evaluation of their states."""
