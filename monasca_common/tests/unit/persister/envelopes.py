# SPDX-License-Identifier: Apache-2.0
"""Values of messages."""

import json

NOW_MS = 1_790_000_000_000


def envelope(kind, members, creation_time, meta=(("tenantId", "t"), ("region", "r"))):
    return json.dumps({kind: members, "meta": dict(meta), "creation_time": creation_time}).encode()


def metric(number, *, host="h", time_ms=NOW_MS, value=None, creation_time=NOW_MS // 1000):
    """Return a measurement; each ``number`` has its own millisecond."""
    members = {
        "name": "cpu.percent",
        "dimensions": {"host": host},
        "timestamp": time_ms + number,
        "value": float(number if value is None else value),
        "value_meta": None,
    }
    return envelope("metric", members, creation_time)


def log(number, *, now_ms=NOW_MS, own_time=False):
    members = {"message": f"line {number}", "dimensions": {"number": str(number)}}
    return envelope("log", members | ({"timestamp": now_ms} if own_time else {}), now_ms // 1000)


def event(number, *, now_ms=NOW_MS):
    members = {"event_type": "made", "timestamp": now_ms + number, "payload": {"number": number}, "dimensions": {}}
    return envelope("event", members, now_ms // 1000, [("project_id", "t")])


def alarm(number, *, now_ms=NOW_MS):
    members = {
        "tenantId": "t",
        "alarmId": f"alarm-{number}",
        "alarmDefinitionId": "definition",
        "alarmName": "name",
        "alarmDescription": "",
        "actionsEnabled": True,
        "stateChangeReason": "why",
        "severity": "LOW",
        "link": None,
        "lifecycleState": None,
        "oldState": "OK",
        "newState": "ALARM",
        "timestamp": now_ms + number,
        "subAlarms": [],
        "metrics": [{"name": "cpu.percent", "dimensions": {"host": "h"}}],
    }
    return json.dumps({"alarm-transitioned": members}).encode()
