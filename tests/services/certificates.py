"""A certificate authority for one test run: the broker's identity, a client's, and a stranger's from another authority.

    ca.pem          trusted by the broker and by clients
    broker.pem      key and certificate for localhost and 127.0.0.1
    deduper.pem     key and certificate of the client CN=deduper
    stranger.pem    the same, issued by an authority that nobody trusts

A .pem of an identity holds the PKCS#8 key first, then the certificate: Java, librdkafka and Python read it as it is.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_DAYS = "30"
_SERVER = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def make_certificates(directory: Path) -> None:
    """All four files; nothing is done when they are there."""
    if (directory / "stranger.pem").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    _authority(directory, "ca")
    _authority(directory, "other-ca")
    _identity(directory, "broker", "ca", extension=_SERVER)
    _identity(directory, "deduper", "ca", extension="extendedKeyUsage=clientAuth")
    _identity(directory, "stranger", "other-ca", extension="extendedKeyUsage=clientAuth")


def make_expired(directory: Path) -> None:
    """Beside those: `expired-server.pem` and `expired-client.pem`, which ended yesterday."""
    _identity(directory, "expired-server", "ca", extension=_SERVER, days="-1")
    _identity(directory, "expired-client", "ca", extension="extendedKeyUsage=clientAuth", days="-1")


def _authority(directory: Path, name: str) -> None:
    files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
    _openssl(directory, "req", "-x509", *_EC, "-subj", f"/CN={name}", "-days", _DAYS, *files)


def _identity(directory: Path, name: str, authority: str, *, extension: str, days: str = _DAYS) -> None:
    _openssl(directory, "req", *_EC, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (directory / f"{name}.ext").write_text(extension + "\n", encoding="ascii")
    signer = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", days]
    _openssl(directory, "x509", "-req", "-in", f"{name}.csr", *signer, "-extfile", f"{name}.ext", "-out", f"{name}.crt")
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    (directory / f"{name}.pem").write_bytes(key.read_bytes() + certificate.read_bytes())


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
