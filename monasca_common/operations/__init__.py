# SPDX-License-Identifier: Apache-2.0
"""Operations: lag, offsets, durability, dead letters, mirrors and the dashboard."""
