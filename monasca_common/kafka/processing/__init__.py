# SPDX-License-Identifier: Apache-2.0
"""Inside the processor: the lanes handlers take work from, and the ways out."""
