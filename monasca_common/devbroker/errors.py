# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a local broker.

::

    DevBrokerError
    ├── JavaNotFound            no Java at all
    ├── JavaTooOld              a Java below the version that Kafka and Spark need
    ├── JarsUnavailable         Kafka's jars are not there and cannot be fetched
    ├── InvalidCluster          a combination of settings that cannot work
    ├── PortTaken               somebody listens on the port that was asked for
    ├── BrokerFailed            a broker ended by itself; the end of its log is in the message
    │   └── BrokerTooSlow       a broker was not ready in time
    ├── PostgresqlNotFound      PostgreSQL's programs are not installed
    └── DatabaseFailed          the database ended or never became ready; the end of its log is in the message
"""


class DevBrokerError(Exception):
    """Root of what a local broker raises; the message names the remedy."""


class JavaNotFound(DevBrokerError):
    """There is no Java, neither at JAVA_HOME nor on the path."""


class JavaTooOld(DevBrokerError):
    """The Java that was found is older than Kafka and Spark need."""


class JarsUnavailable(DevBrokerError):
    """Kafka's jars are not in the cache and could not be fetched."""


class InvalidCluster(DevBrokerError):
    """The settings contradict each other, or the data folder was made with others."""


class PortTaken(DevBrokerError):
    """Somebody already listens on the port that was asked for."""


class BrokerFailed(DevBrokerError):
    """A broker ended by itself, or was not ready in time."""


class BrokerTooSlow(BrokerFailed):
    """A broker was not ready in time: it hangs, or the machine is slower than ``start_timeout`` allows."""

    def __init__(self, what: str, seconds: float, said: str = "") -> None:
        super().__init__(
            f"{what} within {seconds:.3g} s: give a slow machine longer (broker start --timeout, "
            f"KafkaCluster(start_timeout=...)){said and f'; it wrote{chr(10)}{said}'}"
        )


class PostgresqlNotFound(DevBrokerError):
    """The wheel that brings PostgreSQL is not installed."""


class DatabaseFailed(DevBrokerError):
    """The database ended by itself, was not ready in time, or could not be made."""
