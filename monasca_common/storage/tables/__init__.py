# SPDX-License-Identifier: Apache-2.0
"""Users' tables: writes rows together with their offsets, and compares tables with their definitions."""
