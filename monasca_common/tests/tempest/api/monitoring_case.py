# SPDX-License-Identifier: Apache-2.0
"""A client of the API for each user of a test class, and helpers that check its responses."""

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
    """Returns parsed responses; a refusal raises tempest's exception for its status."""

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
        """Return the parsed response to a POST, or `None` if it is empty."""
        _, text = self.post(path, json.dumps(body))
        return json.loads(text) if text else None

    def change(self, path, body, *, whole=False):
        """Send a PATCH, or a PUT if ``whole``."""
        _, text = (self.put if whole else self.patch)(path, json.dumps(body))
        return json.loads(text)

    def pages(self, path, **query):
        """Return the elements of all pages, following next links."""
        while True:
            answer = self.find(path, **query)
            yield answer["elements"]
            following = [link["href"] for link in answer["links"] if link["rel"] == "next"]
            if not following:
                return
            query = dict(parse_qsl(urlsplit(following[0]).query))


class MonitoringCase(test.BaseTestCase):
    """Each class has two tenants: ``self.client`` belongs to one, ``self.stranger`` to the other."""

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
        """Return a name that no other test uses."""
        return data_utils.rand_name(what, prefix="tempest")

    def post(self, name, *values, client=None, **dimensions):
        """Post values a millisecond apart, and return the time of the first one."""
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
        return (client or self.client).make(
            "alarm-definitions", {"name": self.name("definition"), "expression": expression, **fields}
        )

    def alarms_of(self, definition, count=1):
        """Wait until the definition has this number of alarms, and return them."""
        return self.wait_for(
            lambda: self.client.elements("alarms", alarm_definition_id=definition["id"]),
            lambda found: len(found) == count,
            f"{count} alarms of {definition['expression']}",
        )

    def history(self, alarm_id, count):
        """Wait until the alarm has this number of changes, and return them."""
        return self.wait_for(
            lambda: self.client.elements(f"alarms/{alarm_id}/state-history"),
            lambda found: len(found) >= count,
            f"{count} changes of the alarm",
        )

    def wait_for(self, read, accepted, what):
        """Read until the result is accepted, and return it."""
        seconds = CONF.monasca_common.patience_seconds
        deadline = time.monotonic() + seconds
        while not accepted(found := read()):
            if time.monotonic() > deadline:
                self.fail(f"not reached within {seconds:g} s: {what}; found {found}")
            time.sleep(_LOOK_EVERY_SECONDS)
        return found
