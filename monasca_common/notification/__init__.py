# SPDX-License-Identifier: Apache-2.0
"""Notifications: messages that inform people about alarm changes."""
