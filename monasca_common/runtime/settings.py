# SPDX-License-Identifier: Apache-2.0
"""The settings of the status of a service, which each service has in its own group of options."""

from __future__ import annotations

from dataclasses import dataclass

from oslo_config import cfg

from monasca_common.kafka.config import option

#: What decides in place of an option that each of these groups had.
REMOVED_STATUS = {"status_live_seconds": "a loop of the service may take 600 seconds for a turn"}


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """Where a service tells how it is. ``port``: ``None``: nowhere."""

    host: str = option(
        "127.0.0.1",
        name="status_host",
        help="The address at which /healthz, /readyz, /healthcheck and /metrics answer; 0.0.0.0 for every address of "
        "this machine. None asks for authentication.",
    )
    port: int | None = option(
        None,
        name="status_port",
        type=cfg.PortOpt,
        help="The port at which /healthz, /readyz and /healthcheck (JSON) and /metrics (Prometheus) answer. Unset: "
        "none is served.",
    )

    @property
    def address(self) -> str:
        """As the line logged at the start says it; empty: it is not served."""
        return "" if self.port is None else f"{self.host}:{self.port}"
