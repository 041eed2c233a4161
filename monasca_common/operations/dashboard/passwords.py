# SPDX-License-Identifier: Apache-2.0
"""The password file: lines ``name:scrypt:N:r:p:salt:hash``, with salt and hash in base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.operations.dashboard.sessions import Account

_SCHEME = "scrypt"
_N, _R, _P = 2**15, 8, 1  # takes 32 MiB and about 0.1 s per attempt
_MAX_N, _MAX_R, _MAX_P = 2**20, 16, 4
_SALT_BYTES, _HASH_BYTES = 16, 32
_USER = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_AT_ONCE = 2  # maximum number of hashes computed concurrently


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The salted hash of a password."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(_N, _R, _P, salt, _digest(password, _N, _R, _P, salt))

    def fits(self, password: str) -> bool:
        return hmac.compare_digest(self.digest, _digest(password, self.n, self.r, self.p, self.salt))


def password_line(user: str, password: str) -> str:
    """Return the file's line for a user. Raises `ConfigurationError` for an invalid name."""
    if not _USER.fullmatch(user):
        raise ConfigurationError(f"{user!r} is not a valid user name: use 1 to 64 letters, digits and . _ @ -")
    hashed = PasswordHash.of(password)
    salt, digest = (base64.b64encode(each).decode() for each in (hashed.salt, hashed.digest))
    return f"{user}:{_SCHEME}:{hashed.n}:{hashed.r}:{hashed.p}:{salt}:{digest}"


class PasswordFile:
    """Users and their password hashes. The file is read at each login."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` if the file cannot be read or has an invalid line."""
        self._path = path
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._unknown = PasswordHash.of(secrets.token_hex())
        self.users()

    def users(self) -> dict[str, PasswordHash]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(f"password_file {self._path} cannot be read ({reason})") from None
        found = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                user, known = _parsed(line.strip(), f"line {number} of {self._path}")
                found[user] = known
        return found

    def log_in(self, user: str, password: str, project: str = "") -> Account | None:
        """Return the account, or ``None`` for a wrong user or password, in equal time. Raises `ConfigurationError`."""
        known = self.users().get(user)
        with self._slots:
            return Account(user) if (known or self._unknown).fits(password) and known is not None else None


def _parsed(line: str, where: str) -> tuple[str, PasswordHash]:
    """Return the user and the hash. Raises `ConfigurationError`, whose text does not contain the line."""
    wrong = ConfigurationError(f"{where} is invalid: replace it with the output of `monasca-common dashboard password`")
    parts = line.split(":")
    if len(parts) != 7 or parts[1] != _SCHEME or not _USER.fullmatch(parts[0]):
        raise wrong
    try:
        n, r, p = map(int, parts[2:5])
        salt, digest = (base64.b64decode(each, validate=True) for each in parts[5:])
    except (ValueError, binascii.Error):
        raise wrong from None
    power_of_two = n > 1 and n & (n - 1) == 0
    if not power_of_two or n > _MAX_N or not 0 < r <= _MAX_R or not 0 < p <= _MAX_P or len(digest) != _HASH_BYTES:
        raise wrong
    return parts[0], PasswordHash(n, r, p, salt, digest)


def _digest(password: str, n: int, r: int, p: int, salt: bytes) -> bytes:
    room = 256 * n * r  # twice the memory that scrypt uses
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=room, dklen=_HASH_BYTES)
