# SPDX-License-Identifier: Apache-2.0
"""``monasca-common pipeline specifications check``: check the specifications of the aggregates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cliff.show import ShowOne

from monasca_common.cli.command import ObjectColumn
from monasca_common.cli.pipeline import PipelineCommand
from monasca_common.kafka.errors import ConfigurationError


class SpecificationsCheck(PipelineCommand, ShowOne):
    """Check specifications, by default the shipped ones, and print all errors and warnings about probable mistakes.

    The exit status is 1 if a row is refused. For example:
    monasca-common pipeline specifications check --pre-transforms pre.json --transforms transforms.json
    """

    configured = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for name, what in (
            ("pre-transforms", "the selection of input records"),
            ("transforms", "the computation of metrics"),
        ):
            parser.add_argument(f"--{name}", type=Path, metavar="F", help=f"JSON Lines file with {what}")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from monasca_common.pipeline import load

        try:
            found = load(parsed_args.pre_transforms, parsed_args.transforms)
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}") from None
        counts = {"pre_transforms": len(found.pre_transforms), "transforms": len(found.transforms)}
        return self.dict2columns(counts | {"warnings": ObjectColumn("\n".join(found.warnings), found.warnings)})
