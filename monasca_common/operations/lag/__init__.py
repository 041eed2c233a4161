# SPDX-License-Identifier: Apache-2.0
"""The lag of consumer groups: surveys, verdicts, history, and the lag service."""
