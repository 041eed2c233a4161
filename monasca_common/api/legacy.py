# SPDX-License-Identifier: Apache-2.0
"""The groups of the old API's files that are about serving, and what to write in their place."""

from __future__ import annotations

from monasca_common.kafka.config.legacy import Fate, OldGroup, OldOption

_ALL_SERVED = "metrics and logs are always served"
_RULES = (
    "roles are in rules of oslo.policy, write monasca:post_metrics, monasca:write, monasca:read and monasca:delegate "
    "in the file that [oslo_policy] policy_file names"
)

OLD_GROUPS = (
    OldGroup(
        "DEFAULT",
        None,
        (
            OldOption("region", Fate.RENAMED, "region in [api]"),
            OldOption("enable_metrics_api", Fate.IGNORED, _ALL_SERVED),
            OldOption("enable_logs_api", Fate.IGNORED, _ALL_SERVED),
            OldOption("valid_notification_periods", Fate.IGNORED, "a webhook's period is 0 or 60"),
        ),
    ),
    OldGroup(
        "kafka",
        None,
        (
            OldOption("group", Fate.IGNORED, "an API consumes nothing, so it is in no group of consumers"),
            OldOption("alarm_state_transitions_topic", Fate.RENAMED, "alarm_transitions_topic in [api]"),
        ),
    ),
    OldGroup("dispatcher", "resources are not plugins, remove the group"),
    OldGroup("messaging", "messages go to the Kafka that [kafka] describes, remove the group"),
    OldGroup("log_publisher", "write max_body_bytes and region in [api], and max_message_bytes in [kafka]"),
    OldGroup("security", _RULES),
)
