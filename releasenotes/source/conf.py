# SPDX-License-Identifier: Apache-2.0
"""Configures Sphinx for the release notes."""

extensions = ["openstackdocstheme", "reno.sphinxext"]

project = "monasca-common release notes"
copyright = "Monasca contributors"  # noqa: A001 - Sphinx's name for it
root_doc = "index"

html_theme = "openstackdocs"
openstackdocs_auto_name = False
openstackdocs_auto_version = False
