# SPDX-License-Identifier: Apache-2.0
"""Components that all services share: logging, sockets, restarts, health and metrics."""
