# SPDX-License-Identifier: Apache-2.0
"""Opens a Spark session from the configuration. Errors name the missing part in one line."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.errors import SparkFailed, SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.spark.connector import connector_jars, kafka_connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

_NEEDED = ("pyspark", "pandas", "pyarrow")
# This extends Spark's own pattern, because an option of the Kafka client contains credentials.
_SECRETS = "(?i)secret|password|token|access[.]?key|jaas|keystore|connection"
# One line is logged for each event. By default, a failed task logs hundreds of lines; the job's own log contains the
# reason.
_LOG_NAME = "log4j2.properties"
_BRIEF_LOG = r"""
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %replace{%m}{(?s)\\R.*}{}%n%ex{none}
logger.parquet.name = org.apache.parquet.CorruptStatistics
logger.parquet.level = error
"""
_FOLDER = "monasca-spark-"
_JAVA_END_SECONDS = 10.0
_JAVA_OPTIONS, _GATEWAY = "SPARK_SUBMIT_OPTS", "PYSPARK_GATEWAY_PORT"
_TRACE = "Traceback (most recent call last):"
_CAUSE = "Caused by: "
_DAEMON = "monasca_common.pipeline.worker_daemon"
# The text that py4j prepends to Java's error.
_PY4J = re.compile(r"An error occurred while calling .*\n: ")

# spark-submit adds the jars of the packages to this option. If the option is set again, executors lack them.
_JARS = "spark.jars"
_PACKAGES = "spark.jars.packages"


def open_session(settings: SparkSettings, name: str) -> SparkSession:
    """Open a session. Raises `SparkUnavailable`, whose message states the remedy."""
    check_installed()
    from pyspark.sql import SparkSession

    # Without this variable, the workers run the first `python3` in their path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # py4j logs each call with its arguments, which include options with credentials.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    under_submit = _GATEWAY in os.environ  # the active session has loaded the connector
    options = configuration(settings, [] if under_submit else connector_jars())
    builder = SparkSession.builder.appName(name)
    for option, value in options.items():
        if option != _JARS:
            builder = builder.config(option, value)
    try:
        _start_java(options)
        session = builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailable(f"Spark does not start with master={settings.master}: {reason(error)}") from error
    session.sparkContext.setLogLevel("WARN")
    return session


def _start_java(options: Mapping[str, str]) -> None:
    """Start Java, unless it is running. pyspark would put the options on Java's command line, which anyone can see."""
    from pyspark import SparkContext

    if _GATEWAY in os.environ:  # spark-submit has started Java
        SparkContext._ensure_initialized()
    if SparkContext._gateway is not None:
        return
    # Java runs until this process ends.
    lifetime = contextlib.ExitStack()
    atexit.register(lifetime.close)
    folder = Path(lifetime.enter_context(tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True)))
    with _in_a_file(options, folder) as arguments:
        given = os.environ.get("PYSPARK_SUBMIT_ARGS") or "pyspark-shell"
        changes = {"PYSPARK_SUBMIT_ARGS": f"{shlex.join(arguments)} {given}", _JAVA_OPTIONS: _java_options(folder)}
        with _changed_environment(changes):
            SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    lifetime.callback(_end_java, gateway.proc)


def _end_java(java: subprocess.Popen[bytes]) -> None:
    """End Java by closing its standard input. Wait until it has ended, because Java uses its folder until then, and
    because no part of a job may run after the job has ended."""
    if java.stdin is not None:
        java.stdin.close()
    try:
        java.wait(_JAVA_END_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


@contextlib.contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _java_options(folder: Path) -> str:
    """Return the options of the driver's JVM, including those in the environment.

    Spark 4.0.0 creates the folder ``artifacts`` in the working directory of its JVM, which may be read-only. So Java
    uses ``folder`` as its working directory and for temporary files, which remain if Java is killed.
    """
    options = [f"-Duser.dir={folder}", f"-Djava.io.tmpdir={folder}"]
    configured = Path(os.environ.get("SPARK_CONF_DIR", "")) / _LOG_NAME
    if not LOG.isEnabledFor(logging.DEBUG) and not ("SPARK_CONF_DIR" in os.environ and configured.exists()):
        brief = folder / _LOG_NAME
        brief.write_text(_BRIEF_LOG)
        options.append(f"-Dlog4j2.configurationFile={brief}")
    return f"{shlex.join(options)} {os.environ.get(_JAVA_OPTIONS, '')}".rstrip()


@contextlib.contextmanager
def spark_session(settings: SparkSettings, name: str) -> Iterator[SparkSession]:
    """Yield a session, and close it at the end of the block. Raises `SparkUnavailable`, and `SparkFailed` for an error
    of Spark within the block."""
    session = open_session(settings, name)
    try:
        with brief_errors():
            yield session
    finally:
        close_session(session)


@contextlib.contextmanager
def brief_errors() -> Iterator[None]:
    """Translate Spark's errors, which are long Java stack traces, to a one-line `SparkFailed`."""
    try:
        yield
    except spark_errors() as error:
        LOG.debug("Spark has failed:\n%s", error)
        raise SparkFailed(f"Spark has failed: {reason(error)}") from error


def spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, ConnectionError)  # calls raise ConnectionError if Spark has ended


def close_session(session: SparkSession) -> None:
    """Stop the session. Suppress an error that would hide the cause if Spark has already ended."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        session.stop()


def has_ended(session: SparkSession) -> bool:
    """Return whether Spark was stopped or has ended. Spark cannot be restarted within this process."""
    from py4j.protocol import Py4JError

    java_context = session.sparkContext._jsc  # None if the context was stopped here
    try:
        return java_context is None or bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def configuration(settings: SparkSettings, connector: Sequence[Path] | None = ()) -> dict[str, str]:
    """Return Spark's own options, which ``[spark] options`` overrides. ``connector``: the jars of its Kafka connector,
    which every kind of master reads from this machine, or ``None`` if Spark's Ivy fetches them."""
    options = dict(settings.options)
    wanted = {
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # Frames of a batch are small and have the same plans, so adaptive execution takes more time than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": _DAEMON,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _SECRETS,
    }
    packages = [kafka_connector()] if connector is None else []
    for option, added in ((_JARS, [str(jar) for jar in connector or ()]), (_PACKAGES, packages)):
        if listed := [*added, *filter(None, [options.pop(option, "")])]:
            wanted[option] = ",".join(listed)
    if settings.master.startswith("local"):
        # All processes run on this machine, but the machine's name may resolve to the address of another machine.
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return wanted | options


def check_installed() -> None:
    """Raise `SparkUnavailable` if a package or Java is missing on this machine."""
    from monasca_common.devbroker.errors import JavaNotFound
    from monasca_common.devbroker.java import find_java

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(f"{', '.join(missing)} is not installed: install monasca-common[spark]")
    try:
        find_java()
    except JavaNotFound as error:
        raise SparkUnavailable(str(error)) from None


def reason(error: BaseException) -> str:
    """Return the line with the reason for an error: Python's error in a task, or Java's last cause. Spark prints many
    lines before it.
    """
    lines = _PY4J.sub("", str(error)).splitlines()
    traces = [number for number, line in enumerate(lines) if line.endswith(_TRACE)]
    if traces:
        lines = [line for line in lines[traces[-1] + 1 :] if not line.startswith(" ")]  # frames are indented
    else:
        lines = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)][-1:] or lines
    return next(filter(None, lines), type(error).__name__)


@contextlib.contextmanager
def _in_a_file(options: Mapping[str, str], folder: Path) -> Iterator[list[str]]:
    """Yield arguments of spark-submit that name a file with the options in ``folder``. Every user can see a command
    line; only the owner can read the file, which is removed at the end of the block."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf", dir=folder) as properties:
        for option, value in options.items():
            properties.write(f"{option}={_escaped(value)}\n")
        properties.flush()
        yield ["--properties-file", properties.name, "--load-spark-defaults"]


def _escaped(value: str) -> str:
    """Return the value in the syntax of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
