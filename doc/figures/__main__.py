# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the documentation: ``python doc/figures`` writes ``doc/source/_figures/*.svg``.

``--quickstart`` also runs the quick start, and writes pictures of its output and of its dashboard.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pictures
from canvas import AMBER, BLUE, GREEN, PALE, RED, Canvas

FOLDER = Path(__file__).parents[1] / "source" / "_figures"


def system() -> Canvas:
    """Draw the services and the data flow between them."""
    c = Canvas(1010, 640, "Clients post to the API, Kafka stores the messages, and services read and write its topics")
    c.box(20, 150, 110, 60, "clients\nagents, users", fill=PALE)
    c.box(190, 150, 110, 60, "api\nposts, queries", fill=BLUE)
    c.box(350, 60, 110, 500, "Kafka\ntopics", fill=GREEN)
    c.arrow((130, 170), (188, 170))
    c.arrow((188, 194), (132, 194))
    c.label(159, 164, "posts", anchor="middle", small=True)
    c.label(159, 210, "204, rows", anchor="middle", small=True)
    c.arrow((300, 170), (348, 170))
    c.label(325, 164, "publish", anchor="middle", small=True)
    c.arrow((348, 194), (302, 194), dashed=True)
    c.label(325, 210, "acks", anchor="middle", small=True)
    rows = (
        ("persister, sink", "messages to rows", "metrics, logs, events, transitions", "", "database", "rows, alarms"),
        ("aggregate", "on Spark", "metrics", "metrics of hours and days", "", ""),
        ("evaluate", "on Spark", "metrics", "alarm-state-transitions", "", ""),
        ("notification", "to receivers", "alarm-state-transitions", "", "receivers", "webhook, e-mail"),
        ("archive", "on Spark", "any topic", "replay", "Parquet files", "folder or S3"),
        ("mirror", "exactly once", "any topic", "", "second Kafka", "copies"),
        ("lag, audit", "dashboard", "offsets, counts", "", "operators", "pages, alerts"),
    )
    for number, (name, what, reads, writes, outside, content) in enumerate(rows):
        y = 60 + 72 * number
        c.box(670, y, 130, 54, f"{name}\n{what}", fill=BLUE)
        c.arrow((460, y + 18), (668, y + 18))
        c.label(470, y + 12, reads, small=True)
        if writes:
            c.arrow((668, y + 40), (462, y + 40))
            c.label(470, y + 54, writes, small=True)
        if outside:
            c.box(870, y, 120, 54, f"{outside}\n{content}", fill=PALE)
            if name == "archive":
                c.arrow((868, y + 40), (802, y + 40))
            c.arrow((800, y + 18), (868, y + 18))
    c.arrow((930, 60), (930, 30), (245, 30), (245, 148))
    c.label(560, 24, "queries: rows, definitions, alarms, notifications", anchor="middle", small=True)
    c.arrow((800, 150), (900, 150), (900, 116), dashed=True)
    c.arrow((800, 222), (930, 222), (930, 116), dashed=True)
    c.arrow((800, 270), (835, 270), (835, 246), (960, 246), (960, 116), dashed=True)
    c.label(
        20, 590, "dashed, right: state of jobs, alarms and notifications, with offsets, in one transaction", small=True
    )
    c.label(
        20,
        608,
        "Each reader publishes messages that it cannot process to a dead-letter topic (<topic>.dlq).",
        small=True,
    )
    c.label(20, 626, "Each service reports its counts of messages to the audit, if this is enabled.", small=True)
    return c


def outcomes() -> Canvas:
    """Draw the life of a message, from the call to its outcome."""
    c = Canvas(860, 330, "A message is reserved, handed over and settled as delivered, failed or unknown")
    c.box(20, 130, 150, 60, "reserved\nroom in the budget", fill=BLUE)
    c.box(240, 130, 140, 60, "handed over\nto the client", fill=BLUE)
    c.arrow((170, 160), (238, 160))
    c.box(610, 20, 220, 56, "delivered\na broker acknowledged it", fill=GREEN)
    c.box(610, 132, 220, 56, "unknown\nperhaps in the log", fill=AMBER)
    c.box(610, 244, 220, 56, "failed\ndefinitely not in the log", fill=RED)
    c.arrow((340, 130), (340, 48), (608, 48))
    c.label(350, 42, "acknowledged", small=True)
    c.arrow((380, 160), (608, 160))
    c.label(390, 154, "time-out, lost response, close", small=True)
    c.arrow((340, 190), (340, 258), (608, 258))
    c.label(350, 252, "rejected, and not appended", small=True)
    c.arrow((95, 190), (95, 288), (608, 288))
    c.label(105, 281, "no room, too large, closed, interrupted: never sent", small=True)
    c.arrow((720, 132), (720, 100), (290, 100), (290, 128), dashed=True)
    c.label(400, 93, "retry: the same id", small=True)
    c.arrow((830, 272), (845, 272), (845, 318), (50, 318), (50, 192), dashed=True)
    c.label(400, 312, "retry: the same id", small=True)
    return c


def fence() -> Canvas:
    """Draw two persisters that write rows of the same partition."""
    c = Canvas(860, 360, "The stored offset moves with the rows, from the value that was read, or not at all")
    c.box(20, 20, 200, 50, "persister A\nowns the partition", fill=BLUE)
    c.box(640, 20, 200, 50, "persister B\nformer owner", fill=AMBER)
    c.box(340, 20, 180, 50, "database\nnext = 100", fill=PALE)
    c.line((120, 70), (120, 340))
    c.line((430, 70), (430, 340))
    c.line((740, 70), (740, 340))
    c.arrow((122, 105), (428, 105))
    c.label(140, 98, "rows 100 to 149, next 100 -> 150", small=True)
    c.arrow((428, 135), (122, 135))
    c.label(140, 129, "offset moved: commit", small=True)
    c.box(380, 145, 100, 30, "next = 150", fill=GREEN)
    c.arrow((738, 210), (432, 210))
    c.label(450, 203, "rows 100 to 149, next 100 -> 150", small=True)
    c.arrow((432, 240), (738, 240))
    c.label(450, 234, "next is 150: already stored", small=True)
    c.arrow((738, 275), (432, 275))
    c.label(450, 268, "rows 150 to 199, next 150 -> 200", small=True)
    c.box(380, 285, 100, 30, "next = 200", fill=GREEN)
    c.arrow((122, 300), (378, 300), dashed=True)
    c.label(140, 293, "rows 150 to 179", small=True)
    c.arrow((378, 330), (122, 330), dashed=True)
    c.label(140, 324, "next is 200: already stored", small=True)
    c.label(
        430,
        355,
        "The second writer stores nothing twice and resumes at the stored offset.",
        anchor="middle",
        small=True,
    )
    return c


def prefix() -> Canvas:
    """Draw which offset of a partition is committed."""
    c = Canvas(760, 210, "The gap-free prefix of the finished messages is committed")
    states = ["done", "done", "done", "dead", "done", "busy", "done", "done", "wait", "wait", "wait"]
    fills = {"done": GREEN, "dead": RED, "busy": AMBER, "wait": PALE}
    for number, state in enumerate(states):
        c.box(30 + 64 * number, 70, 60, 50, f"{40 + number}\n{state}", fill=fills[state])
    c.arrow((346, 160), (346, 122))
    c.label(346, 178, "committed: 45 (next to read)", anchor="middle")
    c.label(346, 196, "46 and 47 are done, but are read again after a crash", anchor="middle", small=True)
    c.label(32, 40, "one partition, by offset", bold=True)
    c.label(32, 58, "dead: its dead letter is acknowledged; busy: in a handler; wait: not started", small=True)
    return c


def windows() -> Canvas:
    """Draw event time divided into windows, and windows in a period."""
    c = Canvas(760, 290, "Windows of ten minutes of event time make up the hour that is published")
    for number in range(6):
        minute = number * 10
        c.box(
            60 + 110 * number,
            90,
            106,
            46,
            f"12:{minute:02d}\n" + ("partial" if number != 2 else "partial + late"),
            fill=BLUE if number != 2 else AMBER,
        )
    c.label(60, 30, "records, by event time", bold=True)
    for x in (80, 110, 180, 215, 300, 330, 345, 420, 520, 560, 600, 650, 700):
        c.arrow((x, 44), (x, 86))
    c.arrow((310, 20), (310, 86), dashed=True)
    c.label(318, 24, "late: merged into its window", small=True)
    c.box(60, 180, 656, 44, "period 12:00 to 13:00\nrolled up, then combined over its windows", fill=GREEN)
    for number in range(6):
        c.arrow((113 + 110 * number, 136), (113 + 110 * number, 178))
    c.label(60, 250, "version 1, provisional: the hour or its slack is not over", small=True)
    c.label(60, 268, "version 2, final: replaces version 1, because series and time are the same", small=True)
    c.label(
        60,
        286,
        "version 3: after late data; storage keeps the greatest version, whatever the order of arrival",
        small=True,
    )
    return c


def states() -> Canvas:
    """Draw windows of an alarm's metric, and the resulting states of two expressions."""
    c = Canvas(860, 330, "Windows of a minute, and the states of an average and of a maximum over two of them")

    def x(minute: float) -> int:
        return 30 + round(80 * minute)

    values = (40, 90, 95, 60, None, None, None, None, None)
    for minute, value in enumerate(values):
        fill = PALE if value is None else RED if value > 80 else GREEN
        c.box(x(minute), 50, 76, 46, f"12:0{minute}\n{'empty' if value is None else value}", fill=fill)
        c.arrow((x(minute + 1.5), 98), (x(minute + 1.5), 132))
    c.label(30, 20, "windows of a minute, with one measurement of cpu.user_perc or none", bold=True)
    c.label(30, 38, "arrows: a window is evaluated 30 s after its end", small=True)
    fills = {"OK": GREEN, "ALARM": RED, "UNDETERMINED": AMBER}
    for y, text, ends in (
        (160, "avg(cpu.user_perc) > 80 times 2", (1.5, 3.5, 4.5, 9.5)),
        (236, "max(cpu.user_perc) > 80 times 2: later measurements cannot change the result", (1.5, 2.17, 4.5, 9.5)),
    ):
        c.label(30, y - 6, text, small=True)
        starts = (0, *ends)
        for state, start, end in zip(("UNDETERMINED", "OK", "ALARM", "OK"), starts, ends, strict=False):
            c.box(x(start), y, x(end) - x(start), 34, state, fill=fills[state])
        c.box(x(9.5), y, 860 - 12 - x(9.5), 34, "…", fill=AMBER)
    c.label(
        30, 300, "12:04:30: 12:03 is below the threshold; OK remains while it is one of the two windows", small=True
    )
    c.label(30, 318, "12:09:30: fourth evaluation in a row with empty windows: UNDETERMINED", small=True)
    return c


def floors() -> Canvas:
    """Draw the layers of packages and the permitted imports."""
    c = Canvas(760, 592, "Each layer imports only from the layers below it")
    layers = (
        (("simport, validation, repositories, kafka_lib", "imports of services written for monasca-common 3"),),
        (("cli", "commands"), ("quickstart", "all services on one machine")),
        (
            ("api", "HTTP to Kafka"),
            ("persister", "Kafka to rows"),
            ("sink", "topics to tables"),
            ("notification", "alarms"),
        ),
        (("operations", "lag, mirror, dead letters, dashboard"), ("pipeline", "jobs on Spark")),
        (("audit", "counts of messages per service"), ("alarms", "expressions, definitions, states")),
        (("storage", "rows and positions"), ("devbroker", "a real Kafka for tests")),
        (("runtime", "the process of a service"),),
        (("kafka", "producer, consumer, processor"),),
        (("models", "envelopes, limits, rows"),),
    )
    for level, packages in enumerate(layers):
        width = (720 - 20 * (len(packages) - 1)) // len(packages)
        for number, (name, what) in enumerate(packages):
            fill = GREEN if name == "kafka" else BLUE
            c.box(20 + number * (width + 20), 16 + level * 64, width, 46, f"{name}\n{what}", fill=fill)
        if level:
            c.arrow((380, 62 + (level - 1) * 64), (380, 14 + level * 64))
    return c


FIGURES: dict[str, Callable[[], Canvas]] = {
    "system": system,
    "outcomes": outcomes,
    "fence": fence,
    "prefix": prefix,
    "windows": windows,
    "states": states,
    "floors": floors,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quickstart", action="store_true", help="also take pictures of a running quick start")
    arguments = parser.parse_args()
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())
    if arguments.quickstart:
        pictures.take(FOLDER)


if __name__ == "__main__":
    main()
