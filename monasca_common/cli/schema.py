# SPDX-License-Identifier: Apache-2.0
"""``monasca-common schema list | show | check | register``: the schemas of a registry."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cliff.lister import Lister
from oslo_config import cfg

from monasca_common.cli.command import (
    NOTHING_FOUND,
    ChangeLister,
    MonascaCommand,
    NothingFound,
    add_execute,
    add_name_pattern,
    positive,
)
from monasca_common.kafka import SerializationContext, load_serializer
from monasca_common.kafka.config.schema_registry import GROUP, registry_settings
from monasca_common.kafka.errors import ConfigurationError, RegistryUnavailable, SchemaRefused, SerializationError

if TYPE_CHECKING:
    from monasca_common.kafka.serialization.registry_client import RegistryClient

_SERIALIZERS = {".avsc": "avro", ".json": "json-schema", ".proto": "protobuf"}
_SUBJECT_NOT_FOUND, _SCHEMA_NOT_FOUND = 40401, 40403
_REGISTERED, _COMPATIBLE, _NEW, _INCOMPATIBLE, _INVALID = "registered", "compatible", "new", "incompatible", "invalid"


class _SchemaCommand(MonascaCommand):
    """Queries the registry of ``[schema_registry]``."""

    extra = "avro"
    reported = (*MonascaCommand.reported, RegistryUnavailable)

    def client(self, conf: cfg.ConfigOpts) -> RegistryClient:
        from monasca_common.kafka.serialization.registry_client import RegistryClient

        return RegistryClient(registry_settings(conf))


class SchemaList(_SchemaCommand, Lister):
    """Show the subjects of the schema registry, each with its latest version and the id of its schema.

    The exit status is 3 if no subject has the requested name. For example:
    monasca-common schema list --subject "metrics*"
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_name_pattern(parser, "--subject", "subjects")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]]:
        ask = self.client(self.read(parsed_args)).ask
        rows = []
        for subject in sorted(fnmatch.filter(ask(lambda client: client.get_subjects()), parsed_args.subject)):
            latest = ask(methodcaller("get_latest_version", subject))
            rows.append((subject, latest.version, latest.schema_id))
        if not rows and parsed_args.subject != "*":
            self._status = NOTHING_FOUND
            self.report(f"--subject {parsed_args.subject}: there is no such subject")
        return ("subject", "latest_version", "latest_id"), rows


class SchemaShow(_SchemaCommand):
    """Print a schema: the latest version of a subject, another version, or the schema with an id.

    The exit status is 3 if there is no such schema. For example:
    monasca-common schema show metrics-value --schema-version 2
    monasca-common schema show --id 17
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("subject", nargs="?", metavar="SUBJECT", help="a subject of the registry")
        chosen = parser.add_mutually_exclusive_group()
        chosen.add_argument("--schema-version", type=positive, metavar="N", help="a version (default: the latest)")
        chosen.add_argument("--id", type=positive, metavar="N", help="the id of a schema, instead of a subject")

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if bool(parsed_args.subject) == bool(parsed_args.id):
            raise ConfigurationError("name either a subject or an id (--id)")
        ask = self.client(self.read(parsed_args)).ask
        try:
            if parsed_args.id:
                schema = ask(lambda client: client.get_schema(parsed_args.id))
            else:
                version = parsed_args.schema_version or "latest"
                schema = ask(lambda client: client.get_version(parsed_args.subject, version).schema)
        except SchemaRefused as refused:
            raise NothingFound(str(refused)) from refused
        self.print(schema.schema_str)
        return 0


class _File(NamedTuple):
    """A schema to register."""

    subject: str
    path: str
    schema_type: str
    text: str
    fault: str = ""  # why it is not a schema


class _FilesCommand(_SchemaCommand, ChangeLister):
    """Compares files with the registry."""

    columns = ("subject", "file", "state", "reason")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "subject",
            nargs="?",
            metavar="SUBJECT",
            help="the subject of FILE (default: all subjects of schema_files in the configuration)",
        )
        parser.add_argument("file", nargs="?", metavar="FILE", help="the file of the schema: .avsc, .json or .proto")

    def files(self, parsed_args: argparse.Namespace, conf: cfg.ConfigOpts) -> Iterator[_File]:
        """Yield the schemas. Raises `ConfigurationError`."""
        if parsed_args.subject and not parsed_args.file:
            raise ConfigurationError("name a subject and its file, or neither")
        if parsed_args.subject:
            yield _file(conf, parsed_args.file, subject=parsed_args.subject)
            return
        found = registry_settings(conf).schema_files
        if not found:
            raise ConfigurationError(
                f"schema_files in group [{GROUP}] is not set: set it, or name a subject and its file"
            )
        for topic, path in found.items():
            name, _, field = topic.partition(":")
            yield _file(conf, path, context=SerializationContext(name, "key" if field else "value"))

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        conf = self.read(parsed_args)
        client = self.client(conf)
        for file in self.files(parsed_args, conf):
            state, reason = self.state(client, file, register=getattr(parsed_args, "execute", False))
            rows.append((file.subject, file.path, state, reason))
            self._status |= state in (_INCOMPATIBLE, _INVALID)

    def state(self, client: RegistryClient, file: _File, *, register: bool) -> tuple[str, str]:
        """Return the state of a file in the registry, and the reason if it cannot be registered."""
        from monasca_common.kafka.serialization.registry_client import Schema

        if file.fault:
            return _INVALID, file.fault
        schema = Schema(file.text, file.schema_type)
        found = _NEW
        try:
            client.ask(methodcaller("lookup_schema", file.subject, schema))
            return _REGISTERED, ""
        except SchemaRefused as refused:
            if refused.code == _SCHEMA_NOT_FOUND:
                found = _COMPATIBLE
            elif refused.code != _SUBJECT_NOT_FOUND:
                return _INVALID, str(refused)
        try:
            if found == _COMPATIBLE and not client.ask(
                methodcaller("test_compatibility_all_versions", file.subject, schema)
            ):
                return _INCOMPATIBLE, "with an earlier version of the subject"
            if register:
                client.ask(methodcaller("register_schema", file.subject, schema))
                found = _REGISTERED
        except SchemaRefused as refused:
            return _INVALID, str(refused)
        return found, ""


class SchemaCheck(_FilesCommand):
    """Check before a deployment whether schemas are registered or could be; change nothing.

    The exit status is 1 if a schema is incompatible or invalid. For example, check all of schema_files, or one file:
    monasca-common schema check
    monasca-common schema check metrics-value metric.avsc
    """


class SchemaRegister(_FilesCommand):
    """Register schemas; without --execute, only check them.

    The exit status is 1 if a schema is incompatible or invalid; the others are registered. For example:
    monasca-common schema register --execute
    monasca-common schema register metrics-value metric.avsc --execute
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_execute(parser)

    def change(self, parsed_args: argparse.Namespace, rows: list[Sequence[Any]]) -> None:
        super().change(parsed_args, rows)
        self.note_dry_run(parsed_args)


def _unknown_name() -> str:
    raise ConfigurationError("the name of the Protobuf message is unknown: name the subject")


def _file(conf: cfg.ConfigOpts, path: str, *, subject: str = "", context: SerializationContext | None = None) -> _File:
    """Return the schema of a file with ``subject``, or with the subject that the strategy derives from ``context``."""
    name = _SERIALIZERS.get(Path(path).suffix)
    if name is None or not Path(path).is_file():
        raise ConfigurationError(f"{path} is not a schema: name a file that ends in {', '.join(_SERIALIZERS)}")
    fault, settings = "", registry_settings(conf)
    unnamed = subject if context is None else settings.subject(context.option_name, str)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return _File(unnamed, path, "", "", "not UTF-8: convert the file")
    if name == "protobuf":  # the serializer needs a generated class
        if context is not None:
            subject = settings.subject(context.option_name, _unknown_name)
        return _File(subject, path, "PROTOBUF", text)
    serializer: Any = load_serializer(name, conf=conf)
    try:
        schema = serializer.parse(text, ())
        if context is not None:
            subject = settings.subject(context.option_name, lambda: serializer.record_name(schema))
    except SerializationError as error:
        subject, fault = unnamed, str(error)
    return _File(subject, path, serializer.schema_type, text, fault)
