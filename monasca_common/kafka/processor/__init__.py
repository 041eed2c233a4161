# SPDX-License-Identifier: Apache-2.0
"""Processing: calls handlers with retries, dead letters and outputs, then commits."""
