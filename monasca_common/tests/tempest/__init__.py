# SPDX-License-Identifier: Apache-2.0
"""Tests of a whole installation through its public endpoints, as a plugin of tempest."""
