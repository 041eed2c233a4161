# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the documentation. Its warnings are errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "extensions"))

extensions = [
    *("file_map", "old_options", "rule_tests"),
    *("openstackdocstheme", "oslo_config.sphinxext", "sphinx.ext.autodoc"),
]

project = "monasca-common"
copyright = "Monasca contributors"  # noqa: A001 - Sphinx's name for it
root_doc = "index"
exclude_patterns: list[str] = []

html_theme = "openstackdocs"
pygments_style = "native"
openstackdocs_repo_name = "openstack/monasca-common"
openstackdocs_auto_name = False
openstackdocs_bug_project = "monasca-common"
openstackdocs_bug_tag = ""

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
