"""Mechanisms of SASL without a broker. `tests/interop` has brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_client.errors import AuthenticationFailed
from kafka_client.properties import Sasl, Secret
from kafka_client.sasl import authenticate, fetch_token, scram

#: The exchange in RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FIRST = f"r={SERVER_NONCE},s={SALT},i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERIFIER = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
USER = Sasl("SCRAM-SHA-256", "user", Secret("pencil"))


def talk(first: str, final: str, settings: Sasl = USER) -> list[str]:
    """Return the messages that the client sends to a broker that answers `first` and `final`."""
    said: list[str] = []

    def exchange(data: bytes) -> bytes:
        said.append(data.decode())
        return (first, final)[len(said) - 1].encode()

    scram("sha256", settings, exchange, NONCE)
    return said


def test_the_exchange_of_the_rfc() -> None:
    assert talk(FIRST, f"v={VERIFIER}") == [
        f"n,,n=user,r={NONCE}",
        f"c=biws,r={SERVER_NONCE},p={PROOF}",
    ]


def test_a_user_is_escaped() -> None:
    said: list[bytes] = []

    def exchange(data: bytes) -> bytes:
        said.append(data)
        return b""

    with pytest.raises(AuthenticationFailed):
        scram("sha256", Sasl("SCRAM-SHA-256", "a=b,c"), exchange, NONCE)
    assert said == [b"n,,n=a=3Db=2Cc,r=" + NONCE.encode()]


@pytest.mark.parametrize(
    ("first", "final", "reason"),
    [
        (FIRST, "v=AAAA", "does not prove that it has the password"),
        (FIRST, "", "does not prove"),
        ("", "", "challenge is not valid"),
        (FIRST.replace("rOpr", "xOpr"), "", "challenge is not valid"),
        (f"r={NONCE},s={SALT},i=4096", "", "challenge is not valid"),
        (f"r={SERVER_NONCE},s=?,i=4096", "", "challenge is not valid"),
        (f"r={SERVER_NONCE},s=,i=4096", "", "challenge is not valid"),
        (f"r={SERVER_NONCE},s={SALT},i=x", "", "challenge is not valid"),
        (f"r={SERVER_NONCE},s={SALT},i=1", "", "asks for 1 SCRAM iterations"),
        (f"r={SERVER_NONCE},s={SALT},i=2000000000", "", "asks for 2000000000 SCRAM iterations"),
    ],
)
def test_a_broker_that_does_not_keep_to_the_mechanism(first: str, final: str, reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        talk(first, final)


def test_plain() -> None:
    said: list[bytes] = []

    def exchange(data: bytes) -> bytes:
        said.append(data)
        return b""

    authenticate(Sasl("PLAIN", "\N{GREEK SMALL LETTER ALPHA}", Secret("p")), "", exchange)
    assert said == [b"\0\xce\xb1\0p"]


def test_a_token_that_is_refused_is_an_error_even_without_a_code() -> None:
    said: list[bytes] = []

    def exchange(data: bytes) -> bytes:
        said.append(data)
        return b'{"status":"invalid_token"}' if len(said) == 1 else b""

    with pytest.raises(AuthenticationFailed, match="refuses the token"):
        authenticate(Sasl("OAUTHBEARER"), "t.o.k", exchange)
    assert said == [b"n,,\1auth=Bearer t.o.k\1\1", b"\1"]


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = Sasl("OAUTHBEARER", token_url=f"file://{path}")
    path.write_text("a.b.c\n")
    assert fetch_token(settings, 1) == "a.b.c"
    for wrong in ("", "a\1b", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        path.write_text(wrong)
        with pytest.raises(AuthenticationFailed, match=r"the token of .* is not valid"):
            fetch_token(settings, 1)
