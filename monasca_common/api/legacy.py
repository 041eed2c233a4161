# SPDX-License-Identifier: Apache-2.0
"""The option groups of the old API's configuration files, and their replacements."""

from __future__ import annotations

from monasca_common.kafka.config.legacy import Action, OldGroup, OldOption

_ALL_SERVED = "metrics and logs are always served"
_RULES = (
    "oslo.policy checks roles; write the rules monasca:post_metrics, monasca:write, monasca:read and monasca:delegate "
    "to the file named by [oslo_policy] policy_file"
)

OLD_GROUPS = (
    OldGroup(
        "DEFAULT",
        None,
        (
            OldOption("region", Action.RENAMED, "region in [api]"),
            OldOption("enable_metrics_api", Action.IGNORED, _ALL_SERVED),
            OldOption("enable_logs_api", Action.IGNORED, _ALL_SERVED),
            OldOption("valid_notification_periods", Action.IGNORED, "a webhook's period is 0 or 60"),
        ),
    ),
    OldGroup(
        "kafka",
        None,
        (
            OldOption("group", Action.IGNORED, "the API has no consumers"),
            OldOption("alarm_state_transitions_topic", Action.RENAMED, "alarm_transitions_topic in [api]"),
        ),
    ),
    OldGroup("dispatcher", "resources are not plugins; remove the group"),
    OldGroup("messaging", "messages go to the brokers of [kafka]; remove the group"),
    OldGroup("log_publisher", "use max_body_bytes and region in [api], and max_message_bytes in [kafka]"),
    OldGroup("security", _RULES),
)
