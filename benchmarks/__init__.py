# SPDX-License-Identifier: Apache-2.0
"""Speed and memory beside peers, on a real broker: ``python -m benchmarks --help``."""
