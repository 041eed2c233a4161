# SPDX-License-Identifier: Apache-2.0
"""Serializers convert values to bytes and back: `json`, `raw`, and their interface."""
