# SPDX-License-Identifier: Apache-2.0
"""Downloads jars from the configured Maven repository over HTTP.

The repository is the URL in ``MONASCA_COMMON_MAVEN_REPOSITORY``, or the mirror of Maven Central in Maven's
``settings.xml`` with the login of its server, or Maven Central. Proxies come from the environment (``https_proxy``).
"""

import base64
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree  # nosec B405
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monasca_common.jars.digests import Jar, JarError

REPOSITORY_VARIABLE = "MONASCA_COMMON_MAVEN_REPOSITORY"

_CENTRAL = "https://repo1.maven.org/maven2"
_GLOBAL_SETTINGS = Path("/etc/maven/settings.xml")
_MATCHES_CENTRAL = {"central", "*", "external:*"}
_WAITS_SECONDS = (1.0, 2.0, 4.0)  # waits between the four attempts
_SILENCE_SECONDS = 30.0
_ATTEMPT_SECONDS = 300.0
_CHUNK_BYTES = 65_536
_MOST_BYTES = 512 * 1024 * 1024  # several times the largest file, because a wrong URL can deliver without end
_TEMPORARY_ANSWERS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Repository:
    """A Maven repository. ``source``: the place of its configuration, for error messages. ``login``:
    ``user:password``."""

    url: str
    source: str
    login: str | None = field(default=None, repr=False)

    def url_of(self, jar: Jar) -> str:
        return f"{self.url}/{jar.path}"


def configured_repository(environ: Mapping[str, str]) -> Repository:
    """Return the repository that is configured on this machine. Raises `JarError` if the configuration is wrong."""
    if given := environ.get(REPOSITORY_VARIABLE):
        return _of_url(given, REPOSITORY_VARIABLE)
    for file in (Path(environ.get("HOME") or Path.home(), ".m2", "settings.xml"), _GLOBAL_SETTINGS):
        if file.is_file() and (mirror := _mirror(file, environ)):
            return mirror
    return Repository(_CENTRAL, "the default")


def _of_url(given: str, source: str, login: str | None = None) -> Repository:
    """Return a repository; without ``login``, use the login in the URL. The message of `JarError` omits the URL, which
    can contain a password."""
    try:
        parts = urllib.parse.urlsplit(given)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.path + parts.query + parts.fragment:
        raise JarError(
            f"{source} is not the http or https URL of a Maven repository: write a URL such as {_CENTRAL}; in a "
            f"user name or password, write %40 for @, %2F for /, %3F for ? and %23 for #"
        )
    user, at, host = parts.netloc.rpartition("@")
    url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return Repository(url, source, urllib.parse.unquote(user) if at and login is None else login)


def _mirror(file: Path, environ: Mapping[str, str]) -> Repository | None:
    """Return the mirror of Maven Central in a ``settings.xml``, or ``None``."""

    def text(element: ElementTree.Element, name: str) -> str:
        found = (element.findtext(f"{{*}}{name}") or "").strip()
        return re.sub(r"\$\{env\.(\w+)\}", lambda match: environ.get(match[1], ""), found)

    try:
        settings = ElementTree.parse(file).getroot()  # the user's own file  # nosec B314
    except (OSError, ElementTree.ParseError) as error:
        raise JarError(f"{file} cannot be read ({error}): correct it, or set {REPOSITORY_VARIABLE}") from None
    for mirror in settings.iterfind("{*}mirrors/{*}mirror"):
        patterns = {pattern.strip() for pattern in text(mirror, "mirrorOf").split(",")}
        if patterns & _MATCHES_CENTRAL and "!central" not in patterns:
            servers = settings.iterfind("{*}servers/{*}server")
            server = next((each for each in servers if text(each, "id") == text(mirror, "id")), None)
            login = None if server is None else f"{text(server, 'username')}:{text(server, 'password')}"
            if login and re.search(r":\{.*\}$", login):
                raise JarError(
                    f"{file} has an encrypted password for the mirror {text(mirror, 'id')}, which only Maven can read: "
                    f"write https://USER:PASSWORD@HOST/PATH to {REPOSITORY_VARIABLE}"
                )
            return _of_url(text(mirror, "url"), f"the mirror {text(mirror, 'id')} in {file}", login)
    return None


def download(jar: Jar, repository: Repository, folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
    """Download the jar, compare it with its digest and write it to ``folder``, in up to four attempts.

    Raises `JarError`, and `OSError` if the jar cannot be written to the folder.
    """
    waits = iter(_WAITS_SECONDS)
    while True:
        try:
            content = _attempt(jar, repository)
        except (_Unusable, OSError, http.client.HTTPException, ValueError) as error:
            is_final = isinstance(error, urllib.error.HTTPError) and error.code not in _TEMPORARY_ANSWERS
            wait = None if is_final else next(waits, None)
            if wait is None:
                raise JarError(_refusal(jar, repository, error)) from error
            sleep(wait)
        else:
            (folder / jar.name).write_bytes(content)
            return


class _Unusable(Exception):
    """The repository did not deliver the jar."""


def _refusal(jar: Jar, repository: Repository, error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
    answer = f"{error.code} " if isinstance(error, urllib.error.HTTPError) else ""
    return (
        f"{jar.name} cannot be fetched from {repository.url_of(jar)} (repository of {repository.source}): "
        f"{answer}{str(reason) or type(error).__name__}. Try again, set {REPOSITORY_VARIABLE} to the URL of a Maven "
        "repository that has the jar, or copy the folder that `monasca-common jars fetch --to DIR` writes on a machine "
        "with internet access and set MONASCA_COMMON_JARS to it"
    )


def _attempt(jar: Jar, repository: Repository) -> bytes:
    request = urllib.request.Request(repository.url_of(jar))
    if repository.login is not None:
        login = base64.b64encode(repository.login.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")
    with urllib.request.urlopen(request, timeout=_SILENCE_SECONDS) as response:
        content = b"".join(_chunks(response))
    announced = response.headers.get("Content-Length")
    if announced is not None and len(content) != int(announced):
        raise _Unusable(f"the response ended after {len(content)} of {announced} bytes")
    digest = hashlib.sha256(content).hexdigest()
    if digest != jar.sha256:
        raise _Unusable(f"{len(content)} bytes with the SHA-256 digest {digest} arrived, but {jar.sha256} is pinned")
    return content


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    deadline, left = time.monotonic() + _ATTEMPT_SECONDS, _MOST_BYTES
    while chunk := response.read1(_CHUNK_BYTES):
        yield chunk
        left -= len(chunk)
        if left < 0:
            raise _Unusable(f"the response has more than {_MOST_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the response takes longer than {_ATTEMPT_SECONDS:.0f} s")
