# SPDX-License-Identifier: Apache-2.0
"""All metadata is in setup.cfg; pbr reads it, and makes the version of it and of git's tags and history."""

import configparser
import os
import subprocess

import setuptools


def set_version_without_git() -> None:
    """An unpacked archive, or a checkout of another user, is the first development version of the next release."""
    if os.path.exists("PKG-INFO"):  # a source distribution knows its version
        return
    try:
        git_answers = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True).returncode == 0
    except OSError:
        git_answers = False
    if not git_answers:
        metadata = configparser.ConfigParser()
        metadata.read("setup.cfg")
        os.environ.setdefault("PBR_VERSION", f"{metadata['metadata']['version']}.dev0")


set_version_without_git()
setuptools.setup(pbr=True)
