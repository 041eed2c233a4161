# SPDX-License-Identifier: Apache-2.0
"""The audit: tiers report the messages that they handled, and the reports show whether every message arrived."""
