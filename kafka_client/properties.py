"""Reads a client's properties: Kafka's, or those of librdkafka and kcat.

Passwords are in `Secret`s from here on. No text of an error quotes a value that may hold one.
As with Kafka's configuration providers, `${env:NAME}` in a value stands for a variable of the
environment, `${file:PATH:KEY}` for a value of a properties file, and `${directory:PATH:FILE}` for
the content of a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from storage.errors import InvalidConfig
from storage.settings import java_properties

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

#: librdkafka's names, by ours: Kafka's, or for what Kafka writes into `sasl.jaas.config` its.
_LIBRDKAFKA: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "key.location",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.oauthbearer.client.id": "clientId",
    "sasl.oauthbearer.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
    "enable.ssl.certificate.verification": "verification",
}
#: Kafka's newer names for what `sasl.jaas.config` has.
_OAUTH: Final = {
    "sasl.oauthbearer.client.credentials.client.id": "clientId",
    "sasl.oauthbearer.client.credentials.client.secret": "clientSecret",
}
_KNOWN: Final = {
    *("security.protocol", "sasl.mechanism", "sasl.jaas.config"),
    *("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.method", *_LIBRDKAFKA, *_OAUTH),
    *("ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.type"),
    *("ssl.truststore.password", "ssl.keystore.location", "ssl.keystore.certificate.chain"),
    *("ssl.keystore.key", "ssl.keystore.type", "ssl.keystore.password", "ssl.key.password"),
    "ssl.endpoint.identification.algorithm",
}
# These are used; `_PATHS` are not text, but names of files.
_USED: Final = {*_KNOWN, *_LIBRDKAFKA.values(), *_OAUTH.values(), "client.id"}
_PATHS: Final = {name for name in _USED if name.endswith(".location")}
_JAAS_OPTION = re.compile(
    r"""(\w[\w.]*)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""", re.DOTALL
)
_REFERENCE = re.compile(r"\$\{(env|file|directory):([^}:]*)(?::([^}]*))?\}")
_LARGEST_FILE: Final = 1 << 20


class Secret:
    """A password or a private key. Its `repr` does not show it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret()"


@dataclass(frozen=True)
class Tls:
    """Certificates by path or as PEM text; None for those of the system, or for none."""

    ca_path: str | None = None
    ca_pem: str | None = None
    certificate_path: str | None = None
    certificate_pem: str | None = None
    key_path: str | None = None
    key_pem: Secret | None = None
    key_password: Secret | None = None
    verify_host: bool = True


@dataclass(frozen=True)
class Sasl:
    """Credentials. `token_url` is for OAUTHBEARER, whose user is the id of a client."""

    mechanism: str
    user: str = ""
    password: Secret = field(default_factory=lambda: Secret(""))
    token_url: str = ""
    scope: str = ""


@dataclass(frozen=True)
class ClientSettings:
    """How to connect. `warnings` are texts for the user."""

    tls: Tls | None = None
    sasl: Sasl | None = None
    client_id: str = "kafkafs"
    warnings: tuple[str, ...] = ()


def default_file() -> Path | None:
    """Return kcat's configuration file if there is one."""
    path = Path("~/.config/kcat.conf").expanduser()
    return path if path.is_file() else None


def read_settings(path: Path | None, *, insecure: bool = False) -> ClientSettings:
    """Read a file of properties, or return the defaults. Errors: OSError, InvalidConfig."""
    return settings_of(parse(_read(path)) if path else {}, insecure=insecure)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise InvalidConfig("the file is too large for properties", path=str(path))
    return data


def parse(data: bytes) -> dict[str, str]:
    """Return the values by Kafka's names. librdkafka's syntax has no backslashes to resolve."""
    found = java_properties.parse(data)
    if found.keys() & _LIBRDKAFKA.keys():
        lines = data.decode(errors="surrogateescape").splitlines()
        pairs = [line.partition("=") for line in lines if not line.lstrip().startswith("#")]
        found = {name.strip(): value.strip() for name, is_pair, value in pairs if is_pair}
    return {_LIBRDKAFKA.get(name) or _OAUTH.get(name, name): found[name] for name in found}


def settings_of(properties: Mapping[str, str], *, insecure: bool = False) -> ClientSettings:
    """Interpret properties; `insecure` allows a password without TLS. Errors: OSError,
    InvalidConfig.
    """
    found = {name: _resolved(name, value) for name, value in properties.items()}
    for name in found.keys() & _USED:
        _check_text(name, found[name])
    warnings = [
        f"unknown property, ignored: {name}"
        for name in sorted(found)
        if name.startswith(("ssl.", "sasl.", "security.")) and name not in _KNOWN
    ]
    mechanism = found.get("sasl.mechanism", "").upper()
    protocol = found.get("security.protocol", "").upper()
    if protocol and protocol not in PROTOCOLS:
        raise InvalidConfig(f"security.protocol must be one of {', '.join(PROTOCOLS)}")
    if not protocol and (mechanism or "sasl.jaas.config" in found or "password" in found):
        if not insecure:
            raise InvalidConfig(
                "credentials are set, but security.protocol is not: add"
                " security.protocol=SASL_SSL. To send them without encryption: --insecure"
            )
        protocol = "SASL_PLAINTEXT"
    tls = _tls(found) if protocol in ("SSL", "SASL_SSL") else None
    sasl = _sasl(mechanism, found) if protocol.startswith("SASL_") else None
    if sasl and not tls and not sasl.mechanism.startswith("SCRAM"):
        thing = "password" if sasl.mechanism == "PLAIN" else "token"
        warnings.append(f"the {thing} is sent without encryption: the protocol is SASL_PLAINTEXT")
    if tls and not tls.verify_host:
        warnings.append(
            "host names of brokers are not verified: ssl.endpoint.identification.algorithm is empty"
        )
    return ClientSettings(tls, sasl, found.get("client.id") or "kafkafs", tuple(warnings))


def _resolved(name: str, value: str) -> str:
    def content(reference: re.Match[str]) -> str:
        kind, place, key = reference.groups()
        if kind == "env" and place in os.environ:
            return os.environ[place]
        if kind == "file" and key in (values := java_properties.parse(_read(Path(place)))):
            return values[key]
        if kind == "directory" and key:
            return _read(Path(place, key)).decode(errors="surrogateescape").rstrip("\n")
        raise InvalidConfig(f"{name} refers to {reference[0]}, which is not set")

    return _REFERENCE.sub(content, value)


def _check_text(name: str, value: str) -> None:
    """Refuse a value that is not text. The name of a file may have any bytes but NUL."""
    try:
        data = os.fsencode(value) if name in _PATHS else value.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise InvalidConfig(f"the value of {name} is not UTF-8 text")


def _tls(found: Mapping[str, str]) -> Tls:
    if found.get("verification", "true").lower() == "false":
        raise InvalidConfig(
            "enable.ssl.certificate.verification=false is not supported: name the CA's"
            " certificate in ssl.ca.location"
        )
    key, password = found.get("ssl.keystore.key"), found.get("ssl.key.password")
    return Tls(
        found.get("ssl.truststore.location"),
        found.get("ssl.truststore.certificates"),
        found.get("ssl.keystore.location"),
        found.get("ssl.keystore.certificate.chain"),
        found.get("key.location"),
        Secret(key) if key else None,
        Secret(password) if password else None,
        found.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
    )


def _sasl(mechanism: str, found: Mapping[str, str]) -> Sasl:
    if mechanism not in MECHANISMS:
        raise InvalidConfig(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}")
    options = {**found, **_jaas_options(found.get("sasl.jaas.config", ""))}
    if mechanism == "OAUTHBEARER":
        url = found.get("sasl.oauthbearer.token.endpoint.url", "")
        if not _is_token_url(url):
            raise InvalidConfig(
                "sasl.oauthbearer.token.endpoint.url must be an https: or file: URL"
            )
        user, password = options.get("clientId", ""), options.get("clientSecret", "")
        return Sasl(mechanism, user, Secret(password), url, options.get("scope", ""))
    if not options.get("username") or "password" not in options:
        raise InvalidConfig(
            f"{mechanism} needs a username and a password in sasl.jaas.config, or sasl.username"
            " and sasl.password"
        )
    return Sasl(mechanism, options["username"], Secret(options["password"]))


def _is_token_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("https", "file") and parts.port != 0
    except ValueError:
        return False


def _jaas_options(text: str) -> dict[str, str]:
    return {
        match[1]: re.sub(r"\\(.)", r"\1", match[2][1:-1]) if match[2][0] in "\"'" else match[2]
        for match in _JAAS_OPTION.finditer(text)
    }
