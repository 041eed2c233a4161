# SPDX-License-Identifier: Apache-2.0
"""Where the persister writes and the API reads: one contract, several databases."""
