# SPDX-License-Identifier: Apache-2.0
"""Describe the tempest tests to tempest: their folder and their options."""

from pathlib import Path

from oslo_config import cfg
from tempest.test_discover import plugins

GROUP = "monasca_common"
OPTIONS = [
    cfg.StrOpt("catalog_type", default="monitoring", help="The type of the API's service in Keystone's catalog."),
    cfg.StrOpt(
        "region", default="", help="The region of the API in Keystone's catalog. Empty: the value of identity.region."
    ),
    cfg.FloatOpt(
        "patience_seconds",
        default=120.0,
        min=1.0,
        help="The maximum number of seconds that a test waits for the installation. Too small: tests of a busy "
        "installation fail. Larger: tests of an installation that hangs take longer.",
    ),
    cfg.FloatOpt(
        "delay_seconds",
        default=30.0,
        min=0.0,
        help="The value of [pipeline_evaluate] delay_seconds in the installation: the number of seconds between the "
        "end of a window and its evaluation.",
    ),
    cfg.FloatOpt(
        "lateness_seconds",
        default=10.0,
        min=0.0,
        help="The maximum number of seconds until a change of state is visible: after a window is due, or after the "
        "post of a measurement that changes the state immediately. Too small: tests of a busy installation fail.",
    ),
]


class MonascaCommonTempestPlugin(plugins.TempestPlugin):
    """The entry point ``monasca_common`` of ``tempest.test_plugins``."""

    def load_tests(self):
        here = Path(__file__).parent
        return str(here / "api"), str(here.parents[2])

    def register_opts(self, conf):
        conf.register_opts(OPTIONS, GROUP)

    def get_opt_lists(self):
        return [(GROUP, OPTIONS)]
