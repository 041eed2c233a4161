# SPDX-License-Identifier: Apache-2.0
"""A client of the API for each user of a test class, and what the tests say of its answers."""

import json
import time
from typing import ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from tempest import config, test
from tempest.lib.common import rest_client
from tempest.lib.common.utils import data_utils

CONF = config.CONF
WRITER, READER = "monasca-user", "monasca-read-only-user"
_LOOK_EVERY_SECONDS = 0.2


class MonitoringClient(rest_client.RestClient):
    """Answers are parsed; a refusal raises what tempest has for its status."""

    def __init__(self, manager):
        region = CONF.monasca_common.region or CONF.identity.region
        super().__init__(manager.auth_provider, CONF.monasca_common.catalog_type, region)
        self.project = manager.credentials.project_id

    def find(self, path, **query):
        _, body = self.get(f"{path}?{urlencode(query)}" if query else path)
        return json.loads(body)

    def elements(self, path, **query):
        return self.find(path, **query)["elements"]

    def make(self, path, body):
        """The parsed answer to a POST; `None` for an empty one."""
        _, text = self.post(path, json.dumps(body))
        return json.loads(text) if text else None

    def change(self, path, body, *, whole=False):
        """By PATCH; by PUT if ``whole``."""
        _, text = (self.put if whole else self.patch)(path, json.dumps(body))
        return json.loads(text)

    def pages(self, path, **query):
        """The elements of each page, from the links to the next one."""
        while True:
            answer = self.find(path, **query)
            yield answer["elements"]
            following = [link["href"] for link in answer["links"] if link["rel"] == "next"]
            if not following:
                return
            query = dict(parse_qsl(urlsplit(following[0]).query))


class MonitoringCase(test.BaseTestCase):
    """Each class has two tenants: ``self.client`` writes for the one, ``self.stranger`` for the other."""

    credentials: ClassVar = [["writer", WRITER], ["stranger", WRITER]]

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.client = MonitoringClient(cls.os_writer)
        cls.stranger = MonitoringClient(cls.os_stranger)

    @classmethod
    def resource_cleanup(cls):
        for client in (cls.client, cls.stranger):
            for path in ("alarm-definitions", "notification-methods"):
                for element in client.elements(path):
                    client.delete(f"{path}/{element['id']}")
        super().resource_cleanup()

    def name(self, what="metric"):
        """One that no other test has."""
        return data_utils.rand_name(what, prefix="tempest")

    def post(self, name, *values, client=None, **dimensions):
        """Post values a millisecond apart; the time of the first one."""
        begin = int(time.time() * 1000)
        (client or self.client).make(
            "metrics",
            [
                {"name": name, "dimensions": dimensions, "timestamp": begin + number, "value": value}
                for number, value in enumerate(values)
            ],
        )
        return begin

    def define(self, expression, client=None, **fields):
        """The new definition."""
        return (client or self.client).make(
            "alarm-definitions", {"name": self.name("definition"), "expression": expression, **fields}
        )

    def alarms_of(self, definition, count=1):
        """The alarms of the definition, as soon as there are so many."""
        return self.wait_for(
            lambda: self.client.elements("alarms", alarm_definition_id=definition["id"]),
            lambda found: len(found) == count,
            f"{count} alarms of {definition['expression']}",
        )

    def history(self, alarm_id, count):
        """The changes of the alarm, as soon as there are so many."""
        return self.wait_for(
            lambda: self.client.elements(f"alarms/{alarm_id}/state-history"),
            lambda found: len(found) >= count,
            f"{count} changes of the alarm",
        )

    def wait_for(self, read, accepted, what):
        """What was read, as soon as it is accepted."""
        seconds = CONF.monasca_common.patience_seconds
        deadline = time.monotonic() + seconds
        while not accepted(found := read()):
            if time.monotonic() > deadline:
                self.fail(f"within {seconds:g} s did not come about: {what}; found {found}")
            time.sleep(_LOOK_EVERY_SECONDS)
        return found
