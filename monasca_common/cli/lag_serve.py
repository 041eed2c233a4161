# SPDX-License-Identifier: Apache-2.0
"""``monasca-common lag serve``: surveys every group again and again, until SIGTERM."""

import argparse
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.cli.command import stop_on_signals
from monasca_common.cli.service_command import ServiceCommand
from monasca_common.operations.group_positions import position_reader


class LagServe(ServiceCommand):
    """Look at all consumer groups again and again until SIGTERM: for Prometheus, and for the topic with the history.

    The options are in [lag] and [kafka]. SIGTERM and Ctrl-C end it after the survey that is under way. For example:
    monasca-common lag serve --config-file /etc/monasca/monitoring.conf
    """

    extra = "monitoring"
    checked = "lag"

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        from monasca_common.operations.lag import service as lag_service

        return lambda conf: lag_service.run(conf, lambda service: stop_on_signals(service.stop), position_reader(conf))
