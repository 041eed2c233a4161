# SPDX-License-Identifier: Apache-2.0
"""Speed of the services and clients as ratios against a peer in the same run: ``python -m benchmarks``."""
