# SPDX-License-Identifier: Apache-2.0
"""The lag of consumer groups: the survey, the verdict on each partition, the history, and the service."""
