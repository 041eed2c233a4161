# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of a local cluster. It issues PEM certificates for the broker and each user."""

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from monasca_common.devbroker.ports import HOST

_LIFETIME = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(minutes=5)


def issue(folder: Path, users: Iterable[str]) -> None:
    """Write ``ca.pem``, ``broker.pem`` (key and chain), ``<user>.pem`` and ``<user>.key``.

    ``other-ca.pem`` is the certificate of a different authority, for tests with a wrong authority.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = _Authority("monasca-common development CA")
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "other-ca.pem").write_bytes(_Authority("another CA").pem)
    key, certificate = authority.sign("broker", alternative_names=True)
    _write_private(folder / "broker.pem", key + certificate + authority.pem)
    for user in users:
        key, certificate = authority.sign(user)
        _write_private(folder / f"{user}.key", key)
        (folder / f"{user}.pem").write_bytes(certificate)


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign(self, subject: str, *, alternative_names: bool = False) -> tuple[bytes, bytes]:
        """Return a new key (PKCS#8) and its certificate, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject), self._name, key.public_key())
        if alternative_names:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private, certificate.public_bytes(serialization.Encoding.PEM)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
