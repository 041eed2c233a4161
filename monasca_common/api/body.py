# SPDX-License-Identifier: Apache-2.0
"""Reads a request's body, and enforces limits while reading."""

from __future__ import annotations

import contextlib
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any

import falcon

from monasca_common.api.problems import Problem, bad_request, too_large, unsupported_media_type
from monasca_common.api.settings import ApiSettings

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_JSON = "application/json"
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_ANY_RATIO_BYTES = 64 * 1024  # any compression ratio is accepted up to this decompressed size
# bgzip writes one member per 64 KiB. Decompressing a member takes at least 20 us, even if it is empty.
_MOST_GZIP_MEMBERS = 1000
_MOST_GZIP_RATIO = 100  # metrics have compression ratios of 5 to 50
_BODY_SECONDS = 10.0  # measured from the end of the request's header
_SLICE_BYTES = 16 * 1024
_FULL = "write whole buffer"  # cramjam's error text for a full buffer, because the type of its errors is generic
_ZEROS = re.compile(rb"\0*")


def read_json_body(request: falcon.Request, settings: ApiSettings, *, type_required: bool = False) -> bytes:
    """Return the decompressed body of a request that contains JSON. Raises `Problem`: 400, 408, 413 or 415.

    ``type_required``: refuse a request without a content type instead of assuming JSON.
    """
    if request.env.get("CONTENT_TYPE", "").strip():
        _media_type(request, (_JSON,))
    elif type_required:
        raise bad_request(f"the request has no content type: send Content-Type: {_JSON}")
    return _decoded(request, settings, "gzip")


def read_typed_body(request: falcon.Request, settings: ApiSettings, types: Sequence[str]) -> tuple[str, bytes]:
    """Return the content type, which is one of ``types``, and the body, which is decompressed if it is in gzip or zstd.
    Raises `Problem`: 400, 408, 413 or 415."""
    return _media_type(request, types), _decoded(request, settings, "gzip", "zstd")


def _media_type(request: falcon.Request, types: Sequence[str]) -> str:
    given: str = request.env.get("CONTENT_TYPE", "")
    if given in types:
        return given
    media_type, parameters = falcon.parse_header(given)
    media_type = media_type.strip().lower()
    if media_type not in types or parameters.get("charset", "utf-8").lower() not in _UTF8:
        raise unsupported_media_type(
            f"content type {given[:100]!r} is not supported: send {' or '.join(types)}, in UTF-8"
        )
    return media_type


def _decoded(request: falcon.Request, settings: ApiSettings, *encodings: str) -> bytes:
    given = request.env.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    encoding = given.removeprefix("x-")
    if encoding not in ("", "identity", *encodings):
        raise unsupported_media_type(
            f"content encoding {given[:40]!r} is not supported: send {', '.join(encodings)} or none",
            headers={"Accept-Encoding": ", ".join(encodings)},
        )
    body = read_body(request.env, settings)
    if encoding == "gzip":
        # Many logs with the same traceback exceed the ratio, and zstd permits any ratio.
        return decompressed(body, settings, ratio_limited="zstd" not in encodings)
    return _unzstd(body, settings) if encoding == "zstd" else body


def discard(environ: dict[str, Any]) -> None:
    """Read and discard the rest of the body for at most 10 s, provided that the server detects the end of the body."""
    if not environ.get("wsgi.input_terminated"):
        return
    deadline = time.monotonic() + _BODY_SECONDS
    with contextlib.suppress(Exception):  # after any error, the connection cannot be used
        while environ["wsgi.input"].read(_PIECE_BYTES) and time.monotonic() < deadline:
            pass


def read_body(environ: dict[str, Any], settings: ApiSettings) -> bytes:
    """Return the body as it was sent. Raises `Problem`: 400, 408 or 413."""
    length = _content_length(environ)
    if length is not None and length > settings.max_body_bytes:
        raise _too_large(settings)
    if length is None and not environ.get("wsgi.input_terminated"):
        return b""  # a request without a length and without chunks has no body (RFC 9112, 6.3)
    try:
        return _read_pieces(environ["wsgi.input"], length, settings)
    except Problem:
        raise
    except BlockingIOError:
        raise _too_slow() from None
    except Exception as error:  # servers raise different errors for a truncated or malformed body
        raise bad_request(
            f"the body could not be read to its end ({type(error).__name__}): repeat the request"
        ) from error


def _content_length(environ: dict[str, Any]) -> int | None:
    text = environ.get("CONTENT_LENGTH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request("Content-Length is not a number of at most 18 digits: correct it")
    return int(text)


def _read_pieces(stream: Any, length: int | None, settings: ApiSettings) -> bytes:
    """Read the body in pieces and return it. Raise `Problem` as soon as it is too large or too slow."""
    deadline = time.monotonic() + _BODY_SECONDS
    limit = settings.max_body_bytes if length is None else length
    pieces: list[bytes] = []
    size = 0
    while size <= limit:
        # Without a length, one byte more than the limit is read, to detect a body that is too large.
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
        raise bad_request(f"the body ended after {size} of {length} bytes: repeat the request")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed(body: bytes, settings: ApiSettings, *, ratio_limited: bool = True) -> bytes:
    """Decompress the gzip members of ``body``, up to the limits. Raises `Problem`: 400 or 413."""
    limit = settings.max_body_bytes
    if ratio_limited:
        limit = min(limit, max(_ANY_RATIO_BYTES, len(body) * _MOST_GZIP_RATIO))
    whole = memoryview(body)
    pieces: list[bytes] = []
    size = at = 0
    try:
        for _ in range(_MOST_GZIP_MEMBERS):
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                # Decompress in slices, because zlib copies all input after the end of a member.
                compressed = whole[at : at + _SLICE_BYTES]
                if not compressed:
                    raise bad_request("the gzip body is truncated: repeat the request")
                pieces.append(member.decompress(compressed, limit - size + 1))
                size += len(pieces[-1])
                if size > limit:
                    raise _inflated(settings, limit)
                at += len(compressed) - len(member.unused_data)
            padding = _ZEROS.match(body, at)  # zero bytes may follow a member
            assert padding is not None
            at = padding.end()
            if at == len(body):
                return b"".join(pieces)
    except zlib.error as error:
        raise bad_request(f"the body is not gzip ({error}): correct it or its Content-Encoding") from None
    raise too_large(
        f"the gzip body has more than {_MOST_GZIP_MEMBERS} members and was refused: compress it as one member"
    )


def snappy_decompressed(body: bytes, settings: ApiSettings) -> bytes:
    """Decompress a snappy block, which begins with its decompressed size. Raises `Problem`: 400 or 413."""
    import cramjam  # installed only with the extras that read formats other than JSON

    try:
        if cramjam.snappy.decompress_raw_len(body) > settings.max_body_bytes:
            raise _too_large(settings)
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise bad_request(f"the body is not a snappy block ({error}): correct it or its Content-Encoding") from None


def _unzstd(body: bytes, settings: ApiSettings) -> bytes:
    """Decompress zstd frames into a buffer of the maximum body size. Raises `Problem`: 400 or 413."""
    import cramjam  # installed only with the extras that read formats other than JSON

    buffer = bytearray(settings.max_body_bytes)
    try:
        return bytes(memoryview(buffer)[: cramjam.zstd.decompress_into(body, buffer)])
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise _too_large(settings) from None
        raise bad_request(f"the body is not zstd ({error}): correct it or its Content-Encoding") from None


def _too_large(settings: ApiSettings) -> Problem:
    return too_large(f"the body is larger than {settings.max_body_bytes} bytes and was refused: send it in parts")


def _inflated(settings: ApiSettings, limit: int) -> Problem:
    if limit >= settings.max_body_bytes:
        return _too_large(settings)
    return too_large(
        f"the gzip body expands to more than {_MOST_GZIP_RATIO} times its size and was refused: compress it less, or "
        "send it in parts"
    )


def _too_slow() -> Problem:
    return Problem(
        408,
        "Request Timeout",
        f"the body did not arrive within {_BODY_SECONDS:g} s and was refused: repeat the request",
    )
