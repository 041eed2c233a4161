# SPDX-License-Identifier: Apache-2.0
"""One file a step, never changed once it is released."""
