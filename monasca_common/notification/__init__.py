# SPDX-License-Identifier: Apache-2.0
"""Notifications: changes of alarms become messages to people."""
