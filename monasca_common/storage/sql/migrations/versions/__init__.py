# SPDX-License-Identifier: Apache-2.0
"""One file per step; a released file never changes."""
