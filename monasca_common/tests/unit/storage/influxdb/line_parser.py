# SPDX-License-Identifier: Apache-2.0
"""A parser of InfluxDB's line protocol by its published rules, one character at a time, independent of the writer."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    name: str
    tags: dict[str, str]
    fields: dict[str, str | float | int]
    time: int


def parse(text: str) -> list[Point]:
    """Return all points of a body; comments and white space at the start of a line are dropped, as the server does."""
    points = []
    position = 0
    while position < len(text):
        while position < len(text) and text[position] in " \t\0\n":
            position += 1
        if position < len(text) and text[position] == "#":
            position = (text + "\n").index("\n", position)
            continue
        if position < len(text):
            point, position = _point(text, position)
            points.append(point)
    return points


def _point(text: str, position: int) -> tuple[Point, int]:
    name, position = _word(text, position, ends=", ", escapable=", ")
    tags: dict[str, str] = {}
    while text[position] == ",":
        key, position = _word(text, position + 1, ends="=", escapable=",= ")
        tags[key], position = _word(text, position + 1, ends=", ", escapable=",= ")
        assert key and tags[key], "an empty tag"
    assert text[position] == " "
    fields: dict[str, str | float | int] = {}
    while text[position] in " ,":
        separator = text[position]
        if separator == " " and fields:
            break
        key, position = _word(text, position + 1, ends="=", escapable=",= ")
        fields[key], position = _value(text, position + 1)
    end = (text + "\n").index("\n", position)
    return Point(name, tags, fields, int(text[position + 1 : end])), end + 1


def _word(text: str, position: int, *, ends: str, escapable: str) -> tuple[str, int]:
    word = ""
    while True:
        character = text[position]
        assert character != "\n", "a line ends within a name"
        if character == "\\" and text[position + 1] in escapable:
            word += text[position + 1]
            position += 2
        elif character in ends:
            return word, position
        else:
            word += character
            position += 1


def _value(text: str, position: int) -> tuple[str | float | int, int]:
    if text[position] != '"':
        start = position
        while text[position] not in ", ":
            position += 1
        number = text[start:position]
        return (int(number[:-1]) if number.endswith("i") else float(number)), position
    value, position = "", position + 1
    while text[position] != '"':
        if text[position] == "\\" and text[position + 1] in '"\\':
            position += 1
        value += text[position]
        position += 1
    return value, position + 1
