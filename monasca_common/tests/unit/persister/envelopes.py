# SPDX-License-Identifier: Apache-2.0
"""Values of messages."""

import json

NOW_MS = 1_790_000_000_000


def metric(number, *, host="h", time_ms=NOW_MS, value=None, creation_time=NOW_MS // 1000):
    """Return a measurement; each ``number`` has its own millisecond."""
    return json.dumps(
        {
            "metric": {
                "name": "cpu.percent",
                "dimensions": {"host": host},
                "timestamp": time_ms + number,
                "value": float(number if value is None else value),
                "value_meta": None,
            },
            "meta": {"tenantId": "t", "region": "r"},
            "creation_time": creation_time,
        }
    ).encode()


def log(number, *, now_ms=NOW_MS, own_time=False):
    timestamp = {"timestamp": now_ms} if own_time else {}
    return json.dumps(
        {
            "log": {"message": f"line {number}", "dimensions": {"number": str(number)}, **timestamp},
            "meta": {"tenantId": "t", "region": "r"},
            "creation_time": now_ms // 1000,
        }
    ).encode()


def event(number, *, now_ms=NOW_MS):
    return json.dumps(
        {
            "event": {
                "event_type": "made",
                "timestamp": now_ms + number,
                "payload": {"number": number},
                "dimensions": {},
            },
            "meta": {"project_id": "t"},
            "creation_time": now_ms // 1000,
        }
    ).encode()


def alarm(number, *, now_ms=NOW_MS):
    return json.dumps(
        {
            "alarm-transitioned": {
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
        }
    ).encode()
