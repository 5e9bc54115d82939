"""Properties of a client: Kafka's, librdkafka's, and references to other places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_client.properties import (
    ClientSettings,
    Sasl,
    Secret,
    default_file,
    parse,
    read_settings,
    settings_of,
)
from storage.errors import InvalidConfig

JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"
PLAIN = JAAS.format("plain.Plain", 'username="alice" password="alice-secret"')
KAFKA = f"""
bootstrap.servers=b1:9093, b2:9094
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={JAAS.format("scram.Scram", 'username="alice" password="alice-secret"')}
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
ssl.keystore.location=/etc/client.pem
ssl.key.password=key-secret
acks=all
group.id=g
"""
LIBRDKAFKA = """
# of kcat
metadata.broker.list=b1:9093, b2:9094
security.protocol=sasl_ssl
sasl.mechanisms=SCRAM-SHA-512
sasl.username=alice
sasl.password=alice-secret
ssl.ca.location=/etc/ca.pem
ssl.certificate.location=/etc/client.pem
ssl.key.password=key-secret
queue.buffering.max.ms=1
"""


def settings(text: str, *, insecure: bool = False) -> ClientSettings:
    return settings_of(parse(text.encode()), insecure=insecure)


@pytest.mark.parametrize("text", [KAFKA, LIBRDKAFKA], ids=["Kafka", "librdkafka"])
def test_both_kinds_of_files_mean_the_same(text: str) -> None:
    found = settings(text)
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.user) == ("SCRAM-SHA-512", "alice")
    assert found.sasl.password.reveal() == "alice-secret"
    assert found.tls is not None
    assert (found.tls.ca_path, found.tls.certificate_path) == ("/etc/ca.pem", "/etc/client.pem")
    assert found.tls.key_password is not None
    assert found.tls.key_password.reveal() == "key-secret"
    assert (found.tls.verify_host, found.warnings) == (True, ())


@pytest.mark.parametrize("text", [KAFKA, LIBRDKAFKA], ids=["Kafka", "librdkafka"])
def test_no_password_is_shown(text: str) -> None:
    assert "secret" not in repr(settings(text))


@pytest.mark.parametrize(
    ("options", "user", "password"),
    [
        ('username="alice" password="a\\"b\\\\c"', "alice", 'a"b\\c'),
        ("username='alice' password='x; y=\"z\"'", "alice", 'x; y="z"'),
        ("username=alice password=secret", "alice", "secret"),
        ('username = "alice"\n  password = ""', "alice", ""),
    ],
)
def test_options_of_jaas(options: str, user: str, password: str) -> None:
    found = settings_of(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": JAAS.format("plain.Plain", options),
        }
    ).sasl
    assert found is not None
    assert (found.user, found.password.reveal()) == (user, password)


def test_librdkafka_takes_a_backslash_as_it_is() -> None:
    found = settings(LIBRDKAFKA.replace("alice-secret", r"a\nb\\c=d")).sasl
    assert found is not None
    assert found.password.reveal() == r"a\nb\\c=d"


def test_a_password_is_taken_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "from the environment")
    (tmp_path / "secrets").write_text("password=from a file\n")
    (tmp_path / "password").write_text("from a directory\n")
    for reference, expected in (
        ("${env:KAFKA_PASSWORD}", "from the environment"),
        (f"${{file:{tmp_path}/secrets:password}}", "from a file"),
        (f"${{directory:{tmp_path}:password}}", "from a directory"),
    ):
        found = settings(LIBRDKAFKA.replace("alice-secret", reference)).sasl
        assert found is not None
        assert found.password.reveal() == expected


def test_a_reference_to_nothing_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"password refers to \$\{env:NO_SUCH\}, which is not"):
        settings(LIBRDKAFKA.replace("alice-secret", "${env:NO_SUCH}"))
    with pytest.raises(FileNotFoundError):
        settings(LIBRDKAFKA.replace("alice-secret", "${file:/no/such:key}"))


# -- without encryption ----------------------------------------------------------------------------


def test_a_password_without_encryption_is_a_warning_if_the_file_says_so() -> None:
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN}"
    warning = "the password is sent without encryption: the protocol is SASL_PLAINTEXT"
    assert settings(text).warnings == (warning,)
    assert settings(text.replace("mechanism=PLAIN", "mechanism=SCRAM-SHA-256")).warnings == ()


def test_credentials_without_a_protocol_need_insecure() -> None:
    text = f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN}"
    with pytest.raises(InvalidConfig, match=r"add security.protocol=SASL_SSL. .*: --insecure"):
        settings(text)
    found = settings(text, insecure=True)
    assert (found.tls, found.sasl and found.sasl.user) == (None, "alice")


def test_host_names_are_verified_unless_the_file_says_no() -> None:
    text = "security.protocol=SSL\nssl.endpoint.identification.algorithm="
    found = settings(text)
    assert found.tls is not None
    assert not found.tls.verify_host
    assert found.warnings == (
        "host names of brokers are not verified: ssl.endpoint.identification.algorithm is empty",
    )


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "security.protocol must be one of PLAINTEXT, SSL, "),
        ("security.protocol=SASL_SSL", "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, "),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism must be one of "),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=x y=z;",
            "PLAIN needs a username and a password in sasl.jaas.config, or sasl.username",
        ),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            "sasl.oauthbearer.token.endpoint.url=http://idp/token",
            "sasl.oauthbearer.token.endpoint.url must be an https: or file: URL",
        ),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            "sasl.oauthbearer.token.endpoint.url=https://[::1",
            "sasl.oauthbearer.token.endpoint.url must be an https: or file: URL",
        ),
        (
            "security.protocol=ssl\nenable.ssl.certificate.verification=false",
            "enable.ssl.certificate.verification=false is not supported: name the CA",
        ),
    ],
)
def test_what_is_not_supported_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        settings(text)


def test_a_value_that_is_no_text_is_named() -> None:
    """As in a file in Latin-1. The names of files may have any bytes, and so may unused values."""
    latin1 = b"caf\xe9"
    for name in (b"client.id", b"sasl.password", b"sasl.jaas.config"):
        with pytest.raises(InvalidConfig, match=r"^the value of .* is not UTF-8 text"):
            settings_of(parse(name + b"=" + latin1))
    with pytest.raises(InvalidConfig, match=r"ssl.truststore.location is not UTF-8 text"):
        settings(r"ssl.truststore.location=/etc/\u0000")
    given = b"security.protocol=SSL\nnote=%b\nssl.truststore.location=%b" % (latin1, latin1)
    found = settings_of(parse(given)).tls
    assert found is not None
    assert found.ca_path == os.fsdecode(latin1)


def test_an_unknown_property_of_security_is_a_warning() -> None:
    found = settings("security.protocl=SSL\nssl.cipher.suites=x\nlinger.ms=5\n")
    assert found.warnings == (
        "unknown property, ignored: security.protocl",
        "unknown property, ignored: ssl.cipher.suites",
    )


def test_credentials_of_oauth() -> None:
    url = "sasl.oauthbearer.token.endpoint.url=https://idp/token"
    start = "security.protocol=SASL_SSL\nsasl.mechanism{}=OAUTHBEARER\n" + url
    jaas = JAAS.format("oauthbearer.OAuthBearer", "clientId='me' clientSecret=\"x\" scope='s'")
    for text in (
        start.format("") + f"\nsasl.jaas.config={jaas}",
        start.format("s") + "\nsasl.oauthbearer.method=oidc\nsasl.oauthbearer.client.id=me\n"
        "sasl.oauthbearer.client.secret=x\nsasl.oauthbearer.scope=s\n",
    ):
        found = settings(text).sasl
        assert found is not None
        assert found.password.reveal() == "x"
        password = found.password
        assert found == Sasl("OAUTHBEARER", "me", password, "https://idp/token", "s")


# -- files -----------------------------------------------------------------------------------------


def test_the_file_of_kcat_is_used_if_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_file() is None
    assert read_settings(default_file()) == ClientSettings()
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/kcat.conf").write_text("client.id=mine\n")
    assert read_settings(default_file()).client_id == "mine"


def test_a_file_that_is_no_file_of_properties_is_not_read_whole() -> None:
    with pytest.raises(InvalidConfig, match="too large for properties"):
        read_settings(Path("/dev/zero"))


def test_a_secret_has_no_text() -> None:
    assert f"{Secret('x')} {Secret('x')!r}" == "Secret() Secret()"
