# SPDX-License-Identifier: Apache-2.0
"""Spark's session, by configuration; what is missing for one is told in a line."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = ("pyspark", "pandas", "pyarrow")
_OLDEST_JAVA = 17
_SCALA = "2.13"
# Beside what Spark itself takes for a secret: logins are written into one option of the Kafka client.
_SECRETS = "(?i)secret|password|token|access[.]?key|jaas|keystore|connection"


# In the environment of what `submit` runs.
_DRIVER = "MONASCA_PIPELINE_DRIVER"
# spark-submit adds those of the packages to it: said once more, executors would have no connector.
_JARS = "spark.jars"


def open_session(settings: SparkSettings, name: str) -> SparkSession:
    """Raises `SparkUnavailable`, which says what to install or to correct."""
    check_installed()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Without it the workers run whatever `python3` means there.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # It tells of each call with its arguments: options, and logins among them.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    options = configuration(settings)
    builder = SparkSession.builder.appName(name)
    for option, value in options.items():
        if option != _JARS:
            builder = builder.config(option, value)
    try:
        _start_java(options)
        session = builder.getOrCreate()
    except (PySparkException, Exception) as error:
        raise SparkUnavailable(f"Spark does not start with master={settings.master}: {_first_line(error)}") from error
    session.sparkContext.setLogLevel("WARN")
    return session


def _start_java(options: Mapping[str, str]) -> None:
    """Unless it runs: pyspark would write the options of the first session to its command line."""
    from pyspark import SparkContext

    given = os.environ.get("PYSPARK_SUBMIT_ARGS")
    with _in_a_file(options) as arguments:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(arguments)} {given or 'pyspark-shell'}"
        try:
            SparkContext._ensure_initialized()
        finally:
            os.environ.pop("PYSPARK_SUBMIT_ARGS")
            if given is not None:
                os.environ["PYSPARK_SUBMIT_ARGS"] = given


def close_session(session: SparkSession) -> None:
    """Where Spark has died under its driver, there is nothing left to stop, and no error to be told instead of that."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        session.stop()


def has_ended(session: SparkSession) -> bool:
    """Whether Spark has been stopped or has died: it does not come back within this process."""
    from py4j.protocol import Py4JError

    java_context = session.sparkContext._jsc  # none of a context that was stopped here
    try:
        return java_context is None or bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def configuration(settings: SparkSettings) -> dict[str, str]:
    """Spark's own options; what ``[spark] options`` says comes last."""
    wanted = {
        "spark.master": settings.master,
        "spark.jars.packages": ",".join(settings.packages or (kafka_connector(),)),
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # A batch's frames are small, and planned the same way again and again: what adapting finds out costs more.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # The archive: times as every reader knows them, and no sort of what comes nearly in order of its hours.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.maxConcurrentOutputFileWriters": "32",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _SECRETS,
    }
    if settings.jars:
        wanted[_JARS] = ",".join(settings.jars)
    if settings.master.startswith("local"):
        # The machine's name may lead to an address that is not its own, and everything here is on this machine.
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return wanted | dict(settings.options)


def kafka_connector() -> str:
    """The coordinates of the connector that belongs to the installed pyspark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"


def check_installed() -> None:
    """Raises `SparkUnavailable` for what is missing on this machine."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(f"{', '.join(missing)} is not installed: install monasca-common[spark]")
    java = _java()
    if java is None:
        raise SparkUnavailable(
            f"Java is not installed: install Java {_OLDEST_JAVA} or newer (openjdk-17-jre-headless), or set JAVA_HOME"
        )
    version = _java_version(java)
    if version < _OLDEST_JAVA:
        raise SparkUnavailable(
            f"{java} is Java {version}, but Spark needs {_OLDEST_JAVA}: install it, or set JAVA_HOME"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")


def _java_version(java: str) -> int:
    """Of ``java -version``, as in ``openjdk version "17.0.15"``."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    quoted = said.partition('"')[2].partition('"')[0]
    number = quoted.removeprefix("1.").split(".")[0].split("-")[0]
    return int(number) if number.isdigit() else _OLDEST_JAVA  # of an unknown form: Spark will say


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def submit(settings: SparkSettings, program: str, arguments: Sequence[str]) -> int:
    """Run a Python program by spark-submit, its driver here; its exit status. For the main thread.

    SIGTERM and Ctrl-C end it as they end the program, if that calls `tell_submit`.
    """
    check_installed()
    import pyspark

    spark_submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    with _in_a_file(configuration(settings)) as options, tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / "pid"
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, _DRIVER: str(driver)}
        return _run([spark_submit, *options, program, *arguments], environment, driver)


def tell_submit() -> None:
    """By a program that handles SIGTERM, of itself: to whom `submit` is to pass it on, if this is what started it."""
    if path := os.environ.get(_DRIVER):
        written = Path(f"{path}.written")
        written.write_text(str(os.getpid()))
        written.replace(path)


def _run(command: Sequence[str], environment: Mapping[str, str], driver: Path) -> int:
    """``driver``: the file that `tell_submit` writes."""
    # Who is started with a signal ignored goes on to: Ctrl-C would end Java under the driver, in the midst of a batch.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    try:
        process = subprocess.Popen(command, env=environment)

        def on_signal(_signum: int, _frame: FrameType | None) -> None:
            try:
                told = int(driver.read_text())
            except FileNotFoundError:  # nothing has begun that is to be finished
                process.terminate()
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(told, signal.SIGTERM)

        for each in (signal.SIGTERM, signal.SIGINT):
            before.setdefault(each, signal.signal(each, on_signal))
        return process.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _in_a_file(options: Mapping[str, str]) -> Iterator[list[str]]:
    """Arguments of spark-submit. A command line is there for everybody to see; the file for its owner, as long as the
    block lasts."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as properties:
        for option, value in options.items():
            properties.write(f"{option}={_escaped(value)}\n")
        properties.flush()
        yield ["--properties-file", properties.name, "--load-spark-defaults"]


def _escaped(value: str) -> str:
    """For a file of Java properties."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
