# SPDX-License-Identifier: Apache-2.0
"""Compares the persister and the sink with programs that store the same backlog."""
