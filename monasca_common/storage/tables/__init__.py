# SPDX-License-Identifier: Apache-2.0
"""Tables of users: rows that are written with their offsets, and the comparison with a definition."""
