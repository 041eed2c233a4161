# SPDX-License-Identifier: Apache-2.0
"""The evaluator: its rounds, the writes of the API beside them, and how it catches up."""
