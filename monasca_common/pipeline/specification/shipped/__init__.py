# SPDX-License-Identifier: Apache-2.0
"""The specifications in the package, one JSON object per line."""
