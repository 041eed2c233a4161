# SPDX-License-Identifier: Apache-2.0
"""One case a file. Each runs in a process of its own, gets a `Job` and prints `Figures`.

A peer's case imports the peer and no monasca_common, for it may run in an environment that does not have it.
"""
