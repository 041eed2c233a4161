# SPDX-License-Identifier: Apache-2.0
"""Specifications: they define what is aggregated and how, and come from a file or the database."""
