# SPDX-License-Identifier: Apache-2.0
"""``monasca-common persister``: from Kafka to rows until SIGTERM."""

import argparse
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.cli.service_command import ServiceCommand
from monasca_common.storage.errors import StorageError


class Persister(ServiceCommand):
    """Store what is in Kafka's topics in the database, every message once, until SIGTERM.

    The options are in [persister], [storage], [database], [kafka] and a group for each kind of data: [kafka_metrics],
    [kafka_alarm_history], [kafka_logs], [kafka_events]. SIGHUP reads them again. For example:
    monasca-common persister --config-file /etc/monasca/persister.conf
    """

    extra = "persister"
    checked = "persister"
    reported = (*ServiceCommand.reported, StorageError)

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        from monasca_common.persister import service

        return service.run
