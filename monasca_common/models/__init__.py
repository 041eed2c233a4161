# SPDX-License-Identifier: Apache-2.0
"""What travels in the topics, decoded and checked: metrics, logs, events and alarm transitions. No I/O."""
