# SPDX-License-Identifier: Apache-2.0
"""``monasca-common persister``: run the persister."""

import argparse
from collections.abc import Callable

from oslo_config import cfg

from monasca_common.cli.service_command import ServiceCommand
from monasca_common.storage.errors import StorageError


class Persister(ServiceCommand):
    """Run the persister until SIGTERM: store each message of the topics in the database once.

    The options are in [persister], [storage], [database], [kafka] and a group for each kind of data: [kafka_metrics],
    [kafka_alarm_history], [kafka_logs], [kafka_events]. SIGHUP reloads them. For example:
    monasca-common persister --config-file /etc/monasca/persister.conf
    """

    extra = "persister"
    checked = "persister"
    reported = (*ServiceCommand.reported, StorageError)

    def runner(self, parsed_args: argparse.Namespace) -> Callable[[cfg.ConfigOpts], None]:
        from monasca_common.persister import service

        return service.run
