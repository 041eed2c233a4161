# SPDX-License-Identifier: Apache-2.0
"""The address at which a service serves its status, in each service's option group."""

from __future__ import annotations

from dataclasses import dataclass

from oslo_config import cfg

from monasca_common.kafka.config import option

#: The removed option of groups with a status, and the rule that replaces it.
REMOVED_STATUS = {"status_live_seconds": "a loop of the service may take 600 seconds for a turn"}


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """The address at which a service serves its status. If ``port`` is ``None``, the status is not served."""

    host: str = option(
        "127.0.0.1",
        name="status_host",
        help="The address of /healthz, /readyz, /healthcheck and /metrics, which need no authentication; 0.0.0.0: "
        "every address of this machine.",
    )
    port: int | None = option(
        None,
        name="status_port",
        type=cfg.PortOpt,
        help="The port of /healthz, /readyz and /healthcheck (JSON) and of /metrics (Prometheus). Unset: they are not "
        "served.",
    )

    @property
    def address(self) -> str:
        """The host and port as text for the log; empty if the status is not served."""
        return "" if self.port is None else f"{self.host}:{self.port}"
