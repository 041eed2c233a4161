# SPDX-License-Identifier: Apache-2.0
"""``monasca-common audit serve``: balances the books again and again, until SIGTERM."""

import argparse
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.cli.command import stop_on_signals
from monasca_common.cli.service_command import ServiceCommand


class AuditServe(ServiceCommand):
    """Balance what services report, again and again until SIGTERM: for the log, Prometheus, and alarms.

    The options are in [audit] and [kafka]. With tenant in [audit] it sends a metric of Monasca, over which
    `monasca-common init` defines an alarm. For example:
    monasca-common audit serve --config-file /etc/monasca/monitoring.conf
    """

    extra = "monitoring"
    checked = "audit"

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        from monasca_common.audit import service

        return lambda conf: service.run(conf, lambda audit: stop_on_signals(audit.stop))
