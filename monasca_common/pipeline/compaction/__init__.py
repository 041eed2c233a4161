# SPDX-License-Identifier: Apache-2.0
"""The job ``compact``: it merges the small files of an archive."""
