# SPDX-License-Identifier: Apache-2.0
"""The options of a schema registry and of the schemas of topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from oslo_config import cfg

from monasca_common.kafka.config.groups import OptionGroup
from monasca_common.kafka.config.reader import GroupReader
from monasca_common.kafka.config.security import check_tls_files
from monasca_common.kafka.declaration import option, options_of
from monasca_common.kafka.errors import ConfigurationError

GROUP = "schema_registry"
_STRATEGIES = {
    "topic": "<topic>-value or <topic>-key",
    "record": "the full name of the record",
    "topic-record": "<topic>-<full name of the record>",
}


@dataclass(frozen=True, slots=True)
class SchemaRegistrySettings:
    """The connection to a schema registry, and the schemas of topics."""

    url: str | None = option(
        None,
        help="The URL of a schema registry with Confluent's API, without user and password. Separate the URLs of "
        "replicas by commas; they are tried in this order.",
        example="https://registry.example.org:8081",
    )
    username: str | None = option(None, secret=True, help="The user of basic authentication. Write $$ for each $.")
    password: str | None = option(None, secret=True, help="The password of username. Write $$ for each $.")
    bearer_token: str | None = option(
        None, secret=True, help="A bearer token, instead of username and password. Write $$ for each $."
    )
    allow_insecure_credentials: bool = option(
        False, help="Send credentials to an http URL, where everyone on the network path can read them."
    )
    tls_ca_file: str | None = option(
        None, help="PEM file of the certificate authorities to trust. Unset: the set of the Python package certifi."
    )
    tls_certificate_file: str | None = option(
        None, help="PEM file of this client's certificate, if the registry asks for one."
    )
    tls_key_file: str | None = option(None, help="PEM file of the private key of tls_certificate_file.")
    timeout_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=300.0,
        help="Time to wait for a response of the registry. Too small: a busy registry counts as unavailable. Too "
        "large: partitions and callers wait too long for a registry that hangs.",
    )
    unknown_id_seconds: float = option(
        10.0,
        minimum=0.1,
        maximum=3600.0,
        help="Time to retry the request for an unknown schema id before its message becomes a dead letter. Too small: "
        "messages are rejected if their schema reaches a replica of the registry later. Too large: a corrupt message "
        "delays its partition.",
    )
    cached_schemas: int = option(
        1000,
        minimum=1,
        maximum=1_000_000,
        unit="schemas",
        help="Number of schemas kept in memory. Too small: for a topic with more schemas, the registry is queried for "
        "each message, and messages wait while the registry is unavailable.",
    )
    subject_name_strategy: str | None = option(
        None,
        choices=_STRATEGIES,
        help="The name under which the schemas of written values are registered, for topics that topic_strategies does "
        "not name. One of the two options is required to write; there is no default, because all writers of a topic "
        "must agree.",
    )
    topic_strategies: Mapping[str, str] = option(
        default_factory=dict,
        help="The subject_name_strategy of a topic: TOPIC=STRATEGY, or TOPIC:key=STRATEGY for keys; one per line.",
    )
    schema_files: Mapping[str, str] = option(
        default_factory=dict,
        help="The schema with which values are written to a topic: TOPIC=FILE, or TOPIC:key=FILE for keys; one per "
        "line. Without a file, the latest schema of the subject is read from the registry once.",
    )
    reader_schema_files: Mapping[str, str] = option(
        default_factory=dict,
        help="The Avro schema to which values of a topic are converted when they are read: TOPIC=FILE, or "
        "TOPIC:key=FILE for keys; one per line. Without a file, values keep the schema with which they were written.",
    )
    auto_register: bool = option(
        False,
        help="Register the schemas of schema_files when they are first used. For development: in production, register "
        "them before a deployment.",
    )
    auto_register_topics: tuple[str, ...] = option(
        (),
        help="Topics whose schemas are registered when they are first used, even if auto_register is false: TOPIC, or "
        "TOPIC:key for keys.",
    )
    mixed_topics: tuple[str, ...] = option(
        (),
        help="Topics in which values without a schema id are read as JSON, such as those of producers that do not "
        "write the new format yet. In other topics such values become dead letters.",
    )

    def subject(self, name: str, record_name: Callable[[], str] | None = None) -> str:
        """Return the name under which a schema is registered. ``name``: TOPIC, or TOPIC:key for keys. ``record_name``:
        returns the full name of the record. Raises `ConfigurationError` if the strategy, or its record, is missing."""
        topic, _, field = name.partition(":")
        strategy = self.topic_strategies.get(name, self.subject_name_strategy)
        if strategy is None:
            raise ConfigurationError(
                f"subject_name_strategy in group [{GROUP}] is not set, and topic_strategies has no line for {name}: "
                "set one, because all writers of a topic must use the same strategy"
            )
        if strategy == "topic":
            return f"{topic}-{field or 'value'}"
        if record_name is None:
            raise ConfigurationError(
                f"schema_files in group [{GROUP}] has no file for topic {name}: add one, or set its strategy to topic, "
                "which uses the latest schema of the registry"
            )
        return record_name() if strategy == "record" else f"{topic}-{record_name()}"

    def registers(self, name: str) -> bool:
        """Return whether the schema of ``name`` is registered when it is first used."""
        return self.auto_register or name in self.auto_register_topics


REGISTRY_GROUP = OptionGroup(GROUP, options_of(SchemaRegistrySettings))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's generator of sample files."""
    return [REGISTRY_GROUP.listed()]


def registry_settings(conf: cfg.ConfigOpts) -> SchemaRegistrySettings:
    """Return the settings of ``[schema_registry]``. Raises `ConfigurationError`, which quotes no secret."""
    read = GroupReader(conf, REGISTRY_GROUP)
    files = {
        name: _by_topic(read, name, lambda path: Path(path).is_file(), "the path of a file that exists")
        for name in ("schema_files", "reader_schema_files")
    }
    strategies = _by_topic(read, "topic_strategies", _STRATEGIES.__contains__, f"one of {', '.join(_STRATEGIES)}")
    settings = read.settings(SchemaRegistrySettings, topic_strategies=strategies, **files)
    if not settings.url:
        raise read.error("url", "is not set: write the URL of the schema registry")
    for url in settings.url.split(","):
        scheme = _scheme(url.strip())
        if scheme is None:
            raise read.error(
                "url", "is not an http or https URL with a valid port and without user, password or query: correct it"
            )
        has_login = settings.username or settings.bearer_token
        if has_login and not (scheme == "https" or settings.allow_insecure_credentials):
            raise read.error(
                "url",
                "is an http URL, and credentials would be sent without TLS: use https, or set "
                "allow_insecure_credentials=true where the network is trusted",
            )
    if bool(settings.username) != bool(settings.password) or (settings.username and settings.bearer_token):
        raise read.error("username", "and password belong together, and exclude bearer_token: set one login")
    check_tls_files(settings, GROUP)
    return settings


def optional_registry_settings(conf: cfg.ConfigOpts) -> SchemaRegistrySettings | None:
    """Return `registry_settings`, or ``None`` if no registry is configured."""
    return registry_settings(conf) if GroupReader(conf, REGISTRY_GROUP)["url"] else None


def _scheme(url: str) -> str | None:
    """Return ``http`` or ``https``, or ``None`` for a URL that a client cannot or must not use."""
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number from 0 to 65535, or the IPv6 address is incomplete
        return None
    return parts.scheme if usable and parts.scheme in ("http", "https") and not ("@" in url or parts.query) else None


def _by_topic(read: GroupReader, option: str, accepts: Callable[[str], bool], rule: str) -> dict[str, str]:
    """Return the value of each topic. Raises `ConfigurationError` for a line without a topic or with an invalid
    value."""
    found = {}
    for line in read[option]:
        topic, _, value = (part.strip() for part in line.partition("="))
        if not topic or not accepts(value):
            raise read.error(option, f"has the line {line!r}: write TOPIC=VALUE, where the value is {rule}")
        found[topic] = value
    return found
