# SPDX-License-Identifier: Apache-2.0
"""The errors of local brokers.

::

    DevBrokerError
    ├── JavaNotFound            no Java version that Kafka and Spark can use
    ├── JarsUnavailable         jars are missing and cannot be fetched
    ├── InvalidCluster          contradictory settings
    ├── PortTaken               another program listens on the port
    └── BrokerFailed            a broker exited; the message contains the end of its log
        └── BrokerTooSlow       a broker was not ready in time
"""


class DevBrokerError(Exception):
    """The base class of these errors. Their messages name the remedy."""


class JavaNotFound(DevBrokerError):
    """There is no Java in JAVA_HOME or on the path, or it is too old."""


class JarsUnavailable(DevBrokerError):
    """Jars are not in the cache and could not be fetched."""


class InvalidCluster(DevBrokerError):
    """The settings contradict each other or the settings of the data folder."""


class PortTaken(DevBrokerError):
    """Another program listens on the port."""


class BrokerFailed(DevBrokerError):
    """A broker exited, or was not ready in time."""


class BrokerTooSlow(BrokerFailed):
    """A broker was not ready in time: it hangs, or ``start_timeout`` is too short for this machine."""

    def __init__(self, what: str, seconds: float, said: str = "") -> None:
        super().__init__(
            f"{what} within {seconds:.3g} s: end other programs that load this machine, or use a longer time-out in a "
            f"program (KafkaCluster(start_timeout=...)){said and f'; it wrote{chr(10)}{said}'}"
        )
