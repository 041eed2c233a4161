# SPDX-License-Identifier: Apache-2.0
"""Copies topics to another cluster, each message once, and compares the copies."""
