# SPDX-License-Identifier: Apache-2.0
"""Copies topics from one cluster to another, each message once, and compares the copies."""
