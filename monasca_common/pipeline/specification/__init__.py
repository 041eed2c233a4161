# SPDX-License-Identifier: Apache-2.0
"""Specifications: what is aggregated and how, from a file or the database."""
