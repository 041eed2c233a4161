# SPDX-License-Identifier: Apache-2.0
"""Compares the API with a minimal server that returns the same responses."""
