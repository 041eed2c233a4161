# SPDX-License-Identifier: Apache-2.0
"""How configuration becomes settings: what an operator may write, and what is refused."""
