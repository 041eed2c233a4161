# SPDX-License-Identifier: Apache-2.0
"""Specifications, which define the aggregated metrics and their aggregation, and come from a file or the database."""
