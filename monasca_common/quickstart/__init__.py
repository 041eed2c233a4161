# SPDX-License-Identifier: Apache-2.0
"""The main job shown on this machine's own metrics: posted, lost on purpose, killed on purpose, counted."""
