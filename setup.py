# SPDX-License-Identifier: Apache-2.0
"""All metadata is in setup.cfg; pbr reads it, and derives the version from it and from the tags and history of git."""

import configparser
import os
import subprocess
import sysconfig

import setuptools

NATIVE = "monasca_common/kafka/transport/native"


def set_version_without_git() -> None:
    """Give an unpacked archive, or a checkout of another user, the first development version of the next release."""
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


def native_extensions() -> list[setuptools.Extension]:
    """Return the native Kafka client. It is optional: without a C compiler, setuptools prints one line and continues,
    unless MONASCA_COMMON_NATIVE=required, as for a wheel to publish."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # the limited API does not have it
        return []
    return [
        setuptools.Extension(
            NATIVE.replace("/", ".") + "._librdkafka",
            [f"{NATIVE}/_librdkafka.c", f"{NATIVE}/producer.c", f"{NATIVE}/consumer.c"],
            depends=[f"{NATIVE}/client.h", f"{NATIVE}/rdkafka_abi.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=os.environ.get("MONASCA_COMMON_NATIVE") != "required",
        )
    ]


set_version_without_git()
extensions = native_extensions()
setuptools.setup(
    pbr=True,
    ext_modules=extensions,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if extensions else {},
)
