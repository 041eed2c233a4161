# SPDX-License-Identifier: Apache-2.0
"""The option groups of the old notification engine, with their replacements."""

from __future__ import annotations

from monasca_common.kafka.config.legacy import Action, OldGroup, OldOption

_DATABASE = (
    "alarm definitions and notification methods are in the database that [alarms] connection names: set connection = "
    "postgresql://user:password@host/monasca"
)
_CERTIFICATES = "certificates are always verified; add your own authorities to the file ca_file of [notification]"
_TEMPLATES = "put your own subject.txt, text.txt or body.html into templates_folder of [notification]"
_OLD_PROXY = OldOption(
    "proxy", Action.IGNORED, "connections are opened only to checked addresses, which a proxy would hide"
)
_OLD_TLS = tuple(OldOption(name, Action.IGNORED, _CERTIFICATES) for name in ("insecure", "ca_certs"))

OLD_GROUPS = (
    OldGroup("database", None, (OldOption("repo_driver", Action.IGNORED, _DATABASE),)),
    *(OldGroup(name, f"{_DATABASE}, and remove the group") for name in ("mysql", "postgresql", "orm")),
    OldGroup("keystone", "the service sends neither requests nor tokens to Keystone; remove the group"),
    OldGroup("notification_types", "every type whose notifier is installed can be used; remove the group"),
    OldGroup("notification_processor", "set number in [alarm_processor] to the number of threads; remove the group"),
    OldGroup("queues", "buffer_bytes in [kafka_notifications] limits waiting messages; remove the group"),
    OldGroup("statsd", "no metrics are sent to statsd; remove the group"),
    OldGroup("slack_notifier", None, (*_OLD_TLS, _OLD_PROXY)),
    OldGroup(
        "apprise_notifier", "methods of the type apprise need a notifier from a separate package; remove the group"
    ),
    OldGroup("hipchat_notifier", "HipChat no longer exists; remove the group"),
    OldGroup("email_notifier", None, (OldOption("grafana_url", Action.IGNORED, _TEMPLATES),)),
    OldGroup("jira_notifier", None, (_OLD_PROXY, OldOption("custom_formatter", Action.IGNORED, _TEMPLATES))),
)

#: The URL of PagerDuty in old files: Events API v1, which accepts no events of v2.
EVENTS_V1 = "https://events.pagerduty.com/generic/2010-04-15/create_event.json"
EVENTS_V1_IGNORED = "this URL belongs to Events API v1, but events are sent to v2; remove it"


def names(group: str) -> frozenset[str]:
    """Return the old options of a group that the service still reads."""
    return frozenset(old.name for each in OLD_GROUPS if each.name == group for old in each.options)
