# SPDX-License-Identifier: Apache-2.0
"""A request's body: read under limits that are counted while reading, never after."""

from __future__ import annotations

import contextlib
import re
import time
import zlib
from typing import Any

import falcon

from monasca_common.api.problems import Problem, bad_request, too_large
from monasca_common.api.settings import ApiSettings

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_JSON = "application/json"
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
# A small body may grow by any ratio: what counts is what it becomes.
_ANY_RATIO_BYTES = 64 * 1024
# Who writes members writes one for each 64 KiB (bgzip) or more; each of them costs 20 us, however little is in it.
_MOST_GZIP_MEMBERS = 1000
# How many times larger a body may become: measurements shrink 5 to 50 times.
_MOST_GZIP_RATIO = 100
_BODY_SECONDS = 10.0  # of a client, from the end of the header on
_SLICE_BYTES = 16 * 1024
_ZEROS = re.compile(rb"\0*")


def read_json_body(request: falcon.Request, settings: ApiSettings, *, type_required: bool = False) -> bytes:
    """The body as JSON text, decompressed. Raises `Problem`: 400, 408, 413 or 415.

    ``type_required``: a request without a content type is refused, not taken for JSON.
    """
    _check_type(request, required=type_required)
    encoding = request.env.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise Problem(
            415,
            "Unsupported Media Type",
            f"content encoding {encoding[:40]!r} is not known here: send gzip or none",
            headers={"Accept-Encoding": "gzip"},
        )
    body = _read(request.env, settings)
    return decompressed(body, settings) if encoding.endswith("gzip") else body


def discard(environ: dict[str, Any]) -> None:
    """Read the rest of an unneeded body, to its end or for some seconds, if the server marks the end."""
    if not environ.get("wsgi.input_terminated"):
        return
    deadline = time.monotonic() + _BODY_SECONDS
    with contextlib.suppress(Exception):  # servers have error types of their own; each of them ends the connection
        while environ["wsgi.input"].read(_PIECE_BYTES) and time.monotonic() < deadline:
            pass


def _check_type(request: falcon.Request, *, required: bool) -> None:
    given = request.env.get("CONTENT_TYPE") or ""
    if given == _JSON:
        return
    if not given.strip():
        if required:
            raise bad_request(f"the request has no content type: say Content-Type: {_JSON}")
        return
    media_type, parameters = falcon.parse_header(given)
    charset = parameters.get("charset", "utf-8")
    if media_type.strip().lower() != _JSON or charset.lower() not in _UTF8:
        raise Problem(
            415, "Unsupported Media Type", f"content type {given[:100]!r} is not taken here: send {_JSON} in UTF-8"
        )


def _read(environ: dict[str, Any], settings: ApiSettings) -> bytes:
    length = _content_length(environ)
    if length is not None and length > settings.max_body_bytes:
        raise _too_large(settings)
    if length is None and not environ.get("wsgi.input_terminated"):
        return b""  # without a length and without chunks there is no body (RFC 9112, 6.3)
    try:
        return _read_pieces(environ["wsgi.input"], length, settings)
    except Problem:
        raise
    except BlockingIOError:
        raise _too_slow() from None
    except Exception as error:  # servers have error types of their own for a cut or malformed body
        raise bad_request(f"the body could not be read to its end: {type(error).__name__}") from error


def _content_length(environ: dict[str, Any]) -> int | None:
    text = environ.get("CONTENT_LENGTH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad_request("Content-Length is not a number: correct it")
    return int(text)


def _read_pieces(stream: Any, length: int | None, settings: ApiSettings) -> bytes:
    """Raises `Problem` as soon as too much has come or too much time has passed."""
    deadline = time.monotonic() + _BODY_SECONDS
    limit = settings.max_body_bytes if length is None else length
    pieces: list[bytes] = []
    size = 0
    while size <= limit:
        # One byte more than allowed distinguishes a body that is too long from one of exactly the limit.
        wanted = min(_PIECE_BYTES, limit - size if length is not None else limit - size + 1)
        piece = stream.read(wanted) if wanted else b""
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > deadline:
            raise _too_slow()
    if length is None and size > limit:
        raise _too_large(settings)
    if length is not None and size < length:
        raise bad_request(f"the body ended after {size} of {length} bytes: send it again")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed(body: bytes, settings: ApiSettings) -> bytes:
    """The gzip members of ``body``, decompressed no further than the limits. Raises `Problem`: 400 or 413."""
    limit = int(min(settings.max_body_bytes, max(_ANY_RATIO_BYTES, len(body) * _MOST_GZIP_RATIO)))
    whole = memoryview(body)
    pieces: list[bytes] = []
    size = at = 0
    try:
        for _ in range(_MOST_GZIP_MEMBERS):
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                # In slices, because zlib copies whatever follows the end of a member.
                compressed = whole[at : at + _SLICE_BYTES]
                if not compressed:
                    raise bad_request("the gzip body is cut off: send it again")
                pieces.append(member.decompress(compressed, limit - size + 1))
                size += len(pieces[-1])
                if size > limit:
                    raise _inflated(settings, limit)
                at += len(compressed) - len(member.unused_data)
            at = _padding_end(body, at)
            if at == len(body):
                return b"".join(pieces)
    except zlib.error as error:
        raise bad_request(f"the body is not gzip, as its Content-Encoding says ({error})") from None
    raise too_large(
        f"the gzip body has more than {_MOST_GZIP_MEMBERS} members: compress it as one; nothing of it was taken"
    )


def _padding_end(body: bytes, at: int) -> int:
    """Zeros are allowed behind a member."""
    found = _ZEROS.match(body, at)
    assert found is not None
    return found.end()


def _too_large(settings: ApiSettings) -> Problem:
    return too_large(
        f"the body is larger than {settings.max_body_bytes} bytes: send it in parts; nothing of it was taken"
    )


def _inflated(settings: ApiSettings, limit: int) -> Problem:
    if limit >= settings.max_body_bytes:
        return _too_large(settings)
    return too_large(
        f"the gzip body becomes more than {_MOST_GZIP_RATIO:g} times larger: send it less compressed, or in "
        "parts; nothing of it was taken"
    )


def _too_slow() -> Problem:
    return Problem(
        408,
        "Request Timeout",
        f"the body did not come within {_BODY_SECONDS:g} s: send it again; nothing of it was taken",
    )
