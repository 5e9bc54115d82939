"""Stores of certificates without a broker. `tests/interop` has brokers with TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_client.properties import Secret, Tls
from kafka_client.tls import tls_context
from storage.errors import InvalidConfig

JKS = b"\xfe\xed\xfe\xed\0\0\0\2"
PKCS12 = b"\x30\x82\x0a\x0b"


@pytest.mark.parametrize(
    ("data", "is_key_store", "line"),
    [
        (JKS, False, "keytool -list -rfc -keystore '{}' > ca.pem Then set ssl.truststore."),
        (PKCS12, False, "keytool -list -rfc -keystore '{}' > ca.pem"),
        (PKCS12, True, "openssl pkcs12 -in '{}' -out client.pem Then set ssl.keystore."),
        (JKS, True, "keytool -importkeystore -srckeystore '{}' -destkeystore client.p12"),
    ],
)
def test_a_store_of_java_is_refused_with_the_line_that_converts_it(
    tmp_path: Path, data: bytes, is_key_store: bool, line: str
) -> None:
    path = tmp_path / "a store"
    path.write_bytes(data)
    tls = Tls(certificate_path=str(path)) if is_key_store else Tls(ca_path=str(path))
    with pytest.raises(InvalidConfig) as error:
        tls_context(tls)
    assert "store; only PEM is supported. To convert it: " in str(error.value)
    assert line.format(path) in str(error.value)


def test_a_store_that_is_not_valid_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\nsecret\n-----END CERTIFICATE-----\n")
    with pytest.raises(InvalidConfig, match="the trust store has no valid PEM certificate"):
        tls_context(Tls(ca_path=str(path)))
    with pytest.raises(InvalidConfig, match="the trust store has no valid PEM certificate"):
        tls_context(Tls(ca_pem="\N{LATIN SMALL LETTER E WITH ACUTE}"))
    with pytest.raises(InvalidConfig, match="needs a certificate and its private key") as error:
        tls_context(Tls(certificate_path=str(path), key_pem=Secret("secret")))
    assert "secret" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        tls_context(Tls(ca_path=str(tmp_path / "no such file")))
