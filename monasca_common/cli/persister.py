# SPDX-License-Identifier: Apache-2.0
"""``monasca-common persister``: run the persister."""

from monasca_common.cli.service_command import ServiceCommand
from monasca_common.storage.errors import StorageError


class Persister(ServiceCommand):
    """Run the persister until SIGTERM: store each message of the topics once in the database.

    The options are in [persister], [storage], [database], [kafka] and a group for each kind of data: [kafka_metrics],
    [kafka_alarm_history], [kafka_logs], [kafka_events]. SIGHUP reloads them. For example:
    monasca-common persister --config-file /etc/monasca/persister.conf
    """

    extra = "persister"
    service = "monasca_common.persister.service"
    checked = "persister"
    reported = (*ServiceCommand.reported, StorageError)
