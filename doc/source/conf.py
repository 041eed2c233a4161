# SPDX-License-Identifier: Apache-2.0
"""Configures Sphinx for the documentation. Warnings are errors."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "extensions"))

extensions = [
    *("only_docs_extra", "code_tables", "command_help", "file_map", "old_options", "rule_tests"),
    *("openstackdocstheme", "oslo_config.sphinxext", "sphinx.ext.autodoc"),
]

project = "monasca-common"
copyright = "Monasca contributors"  # noqa: A001 - Sphinx's name for it
root_doc = "index"
exclude_patterns: list[str] = []

version = release = importlib.metadata.version("monasca-common")

html_theme = "openstackdocs"
# Removes the theme's OpenStack menu, requests to other servers, and centered tables.
html_theme_options = {
    "analytics_tracking_code": "",
    "display_badge": False,
    "root_title": "monasca-common",
    "sidebar_search": True,
}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["pages.css"]
pygments_style = "native"
openstackdocs_auto_name = False
openstackdocs_auto_version = False
html_show_sourcelink = False

default_role = "py:obj"
# The documented modules import these packages, which the extra ``docs`` does not install.
autodoc_mock_imports = [
    *("alembic", "fixtures", "lark", "pandas", "prometheus_client", "pyarrow", "pyspark", "re2", "sqlalchemy"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
