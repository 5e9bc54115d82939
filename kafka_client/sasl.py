"""SASL mechanisms as exchanges of bytes: PLAIN, SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from kafka_client.errors import AuthenticationFailed, printable
from kafka_client.properties import Sasl

_ITERATIONS: Final = range(4096, 1_000_001)
"""Kafka's smallest number, and one that takes a second: a broker does not choose the time."""
_LONGEST_TOKEN: Final = 1 << 16

#: Sends bytes of the client and returns the broker's answer.
Exchange = Callable[[bytes], bytes]


def authenticate(settings: Sasl, token: str, exchange: Exchange) -> None:
    """Run the mechanism; `token` is for OAUTHBEARER. Errors: AuthenticationFailed, and those of
    `exchange`.
    """
    if settings.mechanism == "PLAIN":
        exchange(f"\0{settings.user}\0{settings.password.reveal()}".encode())
    elif settings.mechanism == "OAUTHBEARER":
        if exchange(f"n,,\1auth=Bearer {token}\1\1".encode()):
            exchange(b"\1")  # The answer had the reason, and this gets the error.
            raise AuthenticationFailed("the broker refuses the token")
    else:
        name = settings.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        scram(name, settings, exchange)


def scram(algorithm: str, settings: Sasl, exchange: Exchange, nonce: str = "") -> None:
    """Prove the password without sending it, and check that the broker has it, too."""
    nonce = nonce or secrets.token_urlsafe(24)
    user = settings.user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={nonce}"
    challenge = exchange(f"n,,{first}".encode())
    try:
        fields = _fields(challenge)
        server_nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
        iterations = int(fields["i"])
    except (KeyError, ValueError):
        raise AuthenticationFailed("the broker's SCRAM challenge is not valid") from None
    if not server_nonce.startswith(nonce) or server_nonce == nonce or not salt:
        raise AuthenticationFailed("the broker's SCRAM challenge is not valid")
    if iterations not in _ITERATIONS:
        raise AuthenticationFailed(f"the broker asks for {iterations} SCRAM iterations")

    def mac(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, algorithm)

    password = settings.password.reveal().encode()
    salted = hashlib.pbkdf2_hmac(algorithm, password, salt, iterations)
    client_key = mac(salted, b"Client Key")
    last = f"c=biws,r={server_nonce}"
    text = b",".join([first.encode(), challenge, last.encode()])
    signature = mac(hashlib.new(algorithm, client_key).digest(), text)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = exchange(f"{last},p={base64.b64encode(proof).decode()}".encode())
    expected = base64.b64encode(mac(mac(salted, b"Server Key"), text)).decode()
    if not hmac.compare_digest(_fields(final).get("v", "").encode(), expected.encode()):
        raise AuthenticationFailed("the broker does not prove that it has the password")


def _fields(message: bytes) -> dict[str, str]:
    parts = message.decode(errors="replace").split(",")
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def fetch_token(settings: Sasl, timeout_s: float) -> str:
    """Read the token from its file, or get one for the client's id and secret.

    Errors: OSError, AuthenticationFailed.
    """
    url = urlsplit(settings.token_url)
    if url.scheme == "file":
        with open(url.path, encoding="ascii", errors="replace") as file:
            token = file.read(_LONGEST_TOKEN).strip()
    else:
        token = _request_token(settings, timeout_s)
    if not token.isprintable() or not token.isascii() or not token:
        raise AuthenticationFailed("the token of sasl.oauthbearer.token.endpoint.url is not valid")
    return token


def _request_token(settings: Sasl, timeout_s: float) -> str:
    import http.client
    import urllib.error
    import urllib.request

    form = {"grant_type": "client_credentials"} | (
        {"scope": settings.scope} if settings.scope else {}
    )
    secret = f"{settings.user}:{settings.password.reveal()}".encode()
    request = urllib.request.Request(
        settings.token_url,
        urlencode(form).encode(),
        {
            "Authorization": f"Basic {base64.b64encode(secret).decode()}",
            "Accept": "application/json",
        },
    )

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Another host must not get the secret."""

        def redirect_request(self, *_arguments: Any) -> None:
            return None

    try:
        opener = urllib.request.build_opener(NoRedirect)
        with opener.open(request, timeout=timeout_s) as answer:
            found: Any = json.loads(answer.read(_LONGEST_TOKEN))
        return str(found["access_token"])
    except urllib.error.HTTPError as error:
        error.close()
        raise AuthenticationFailed(f"the token endpoint answers with status {error.code}") from None
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else OSError(error.reason) from None
    except http.client.HTTPException as error:
        raise OSError(printable(str(error).encode())) from None
    except (KeyError, TypeError, ValueError):
        raise AuthenticationFailed("the token endpoint's answer has no access_token") from None
