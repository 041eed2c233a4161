# SPDX-License-Identifier: Apache-2.0
"""Specifications, which define the aggregated metrics and their computation, and are read from JSON lines."""
