# SPDX-License-Identifier: Apache-2.0
"""What the API serves: one URL family a file."""
