# SPDX-License-Identifier: Apache-2.0
"""Measures the speed of services and clients as ratios to a peer in the same run: ``python -m benchmarks``."""
