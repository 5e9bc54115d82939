"""Makes a TLS context from PEM certificates. Java's stores are refused with the line that
converts them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import ssl
from collections.abc import Iterator

from kafka_client.properties import Tls
from storage.errors import InvalidConfig

_JKS = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = b"\x30"


def tls_context(settings: Tls) -> ssl.SSLContext:
    """Return a context that verifies the broker. Errors: OSError, InvalidConfig."""
    context = ssl.create_default_context()
    context.check_hostname = settings.verify_host
    if settings.ca_path is not None or settings.ca_pem is not None:
        # Only this CA is trusted, as in Kafka's clients.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = settings.verify_host
        _load_ca(context, settings)
    if settings.certificate_path is not None or settings.certificate_pem is not None:
        _load_chain(context, settings)
    return context


def _load_ca(context: ssl.SSLContext, settings: Tls) -> None:
    path = settings.ca_path
    if path is not None:
        require_pem(path, is_key_store=False)
    try:
        context.load_verify_locations(cafile=path, cadata=settings.ca_pem)
    except (ssl.SSLError, TypeError):  # it is not ASCII
        raise InvalidConfig("the trust store has no valid PEM certificate", path=path) from None


def _load_chain(context: ssl.SSLContext, settings: Tls) -> None:
    # Without a password OpenSSL would ask the terminal.
    password = settings.key_password.reveal() if settings.key_password else ""
    path, key = settings.certificate_path, settings.key_path
    if path is not None:
        require_pem(path, is_key_store=True)
    with contextlib.ExitStack() as files:
        if settings.key_pem is not None:
            key = files.enter_context(_as_file(settings.key_pem.reveal()))
        certificate = path or files.enter_context(_as_file(settings.certificate_pem or ""))
        try:
            context.load_cert_chain(certificate, key, lambda: password)
        except (ssl.SSLError, ValueError):
            raise InvalidConfig(
                "the key store needs a certificate and its private key in PEM, and for an"
                " encrypted key the right ssl.key.password"
            ) from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A file in memory: OpenSSL loads a key from a path only, and no key goes to a disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "w", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def require_pem(path: str, *, is_key_store: bool) -> None:
    """Refuse a store of another format. Errors: OSError, InvalidConfig."""
    with open(path, "rb") as file:
        start = file.read(4)
    if start != _JKS and start[:1] != _DER_SEQUENCE:
        return
    store, name = shlex.quote(path), "JKS" if start == _JKS else "PKCS12"
    if not is_key_store:
        line = f"keytool -list -rfc -keystore {store} > ca.pem"
        setting = "ssl.truststore.location=ca.pem"
    else:
        line = f"openssl pkcs12 -in {store} -out client.pem"
        if start == _JKS:
            made = "client.p12"
            line = (
                f"keytool -importkeystore -srckeystore {store} -destkeystore {made}"
                f" -deststoretype PKCS12 && openssl pkcs12 -in {made} -out client.pem"
            )
        setting = "ssl.keystore.location=client.pem"
    raise InvalidConfig(
        f"{path} is a {name} store; only PEM is supported. To convert it: {line} Then set {setting}"
    )
