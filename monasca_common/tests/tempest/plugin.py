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
        help="For how many seconds a test waits for what the installation does. Too small: a busy one fails. Larger: "
        "tests of one that does nothing take longer.",
    ),
    cfg.FloatOpt(
        "delay_seconds",
        default=30.0,
        min=0.0,
        help="The value of [pipeline_evaluate] delay_seconds in the installation: how many seconds after its end a "
        "window is due.",
    ),
    cfg.FloatOpt(
        "lateness_seconds",
        default=10.0,
        min=0.0,
        help="Up to how many seconds after a window was due, or after the post of what decides at once, its change of "
        "state may be seen. Too small: a busy installation fails.",
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
