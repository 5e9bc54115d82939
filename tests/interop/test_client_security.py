"""Our client and the ways in which a broker authenticates it, and it the broker."""

from __future__ import annotations

import base64
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_client.addresses import HostPort
from kafka_client.connection import Connection
from kafka_client.errors import AuthenticationFailed, BrokerUnreachable, ProtocolViolation
from kafka_client.properties import parse, settings_of
from storage.errors import InvalidConfig
from tests.fork_server import KAFKAFS
from tests.interop import clients
from tests.interop.brokers import Broker, free_port
from tests.interop.kafka_tools import require
from tests.waits import HANG_S

pytestmark = pytest.mark.soak

PASSWORD = 'a-"secret"\\, =x'
LOGIN = "org.apache.kafka.common.security"
JAAS = f"{LOGIN}.{{}}LoginModule required"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "OPEN": "SASL_PLAINTEXT",
    "SECURE": "SASL_SSL",
    "MUTUAL": "SSL",
    "OTHER": "SSL",
}


def quoted(text: str) -> str:
    """A value in JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def run(*command: str | Path, given: str = "") -> str:
    done = subprocess.run(
        list(map(str, command)),
        input=given,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Certificates:
    """A CA, and keys that it has signed: of the broker, of another host, of a client."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir()
        openssl = require("openssl", "openssl")
        self.ca = base / "ca.pem"
        new = (openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        run(*new, "-keyout", base / "ca.key", "-out", self.ca, "-subj", "/CN=ca")
        run(*new, "-keyout", base / "x.key", "-out", base / "unknown-ca.pem", "-subj", "/CN=x")
        for name, host in (
            ("broker", "IP:127.0.0.1,DNS:localhost"),
            ("other", "DNS:other.example"),
            ("client", "DNS:client"),
        ):
            signed = (
                "-CA",
                self.ca,
                "-CAkey",
                base / "ca.key",
                "-addext",
                f"subjectAltName={host}",
            )
            key, chain = base / f"{name}.key", base / f"{name}.crt"
            run(*new, *signed, "-keyout", key, "-out", chain, "-subj", f"/CN={name}")
            pem = key.read_text() + chain.read_text()
            (base / f"{name}.pem").write_text(pem)
        encrypted = base / "encrypted.key"
        run(openssl, "pkcs8", "-topk8", "-in", base / "client.key", "-out", encrypted,
            "-passout", "pass:key-secret")  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "made")


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {name: free_port() for name in list(LISTENERS)[2:]}


class SecuredBroker(Broker):
    """With listeners for all protocols."""

    def __init__(self, base: Path, certificates: Certificates, ports: dict[str, int]) -> None:
        super().__init__(base)
        self._certificates = certificates
        self._ports = ports

    def _properties(self) -> dict[str, object]:
        given = super()._properties()
        more = "".join(f",{name}://127.0.0.1:{port}" for name, port in self._ports.items())
        scram, oauth = f"{JAAS.format('scram.Scram')};", JAAS.format("oauthbearer.OAuthBearer")
        login = {
            "plain": f"{JAAS.format('plain.Plain')} user_alice={quoted(PASSWORD)};",
            "scram-sha-256": scram,
            "scram-sha-512": scram,
            "oauthbearer": f'{oauth} unsecuredLoginStringClaim_sub="broker";',
        }
        sasl: dict[str, object] = {}
        for name in ("listener.name.open", "listener.name.secure"):
            sasl[f"{name}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            for mechanism, text in login.items():
                # A properties file has backslashes twice.
                sasl[f"{name}.{mechanism}.sasl.jaas.config"] = text.replace("\\", "\\\\")
        return {
            **given,
            "listeners": f"{given['listeners']}{more}",
            "advertised.listeners": f"{given['advertised.listeners']}{more}",
            "listener.security.protocol.map": ",".join(f"{a}:{b}" for a, b in LISTENERS.items()),
            "broker.session.timeout.ms": 60_000,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._certificates.base / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._certificates.ca,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.other.ssl.keystore.type": "PEM",
            "listener.name.other.ssl.keystore.location": self._certificates.base / "other.pem",
            # Longer than the second in which a broker allows one authentication.
            "listener.name.open.plain.connections.max.reauth.ms": 2500,
            **sasl,
        }


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, ports: dict[str, int]
) -> Iterator[Broker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), certificates, ports)
    try:
        broker.start()
        clients.create_topic(broker, "t")
        admin = clients.admin(broker)
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(kind, 4096)
            change = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(HANG_S)
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def connect(broker: Broker, ports: dict[str, int]) -> Callable[..., Connection]:
    def connect(listener: str, text: str = "", host: str = "127.0.0.1") -> Connection:
        port = ports.get(listener, broker.port)
        made = Connection(HostPort(host, port), settings_of(parse(text.encode())))
        assert not made.request("Metadata", {"topics": []})["errorCode"]
        return made

    return connect


def token(subject: str = "alice") -> str:
    """An unsecured JWT, as a broker without other settings accepts."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(part.rstrip("=") for part in encoded) + "."


def credentials(mechanism: str, path: Path, password: str = PASSWORD) -> str:
    """The lines of a properties file."""
    text = f"sasl.mechanism={mechanism}\n"
    if mechanism == "OAUTHBEARER":
        path.write_text(token() if password == PASSWORD else "x.y.")
        return text + f"sasl.oauthbearer.token.endpoint.url=file://{path}\n"
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    jaas = f'{JAAS.format(module)} username="alice" password={quoted(password)};'
    return text + "sasl.jaas.config=" + jaas.replace("\\", "\\\\") + "\n"


def test_a_session_is_renewed_before_it_ends(
    connect: Callable[..., Connection], tmp_path: Path
) -> None:
    """The broker closes a connection whose session is over."""
    text = credentials("PLAIN", tmp_path / "token")
    connection = connect("OPEN", f"security.protocol=SASL_PLAINTEXT\n{text}")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        connection.request("Metadata", {"topics": []})
    connection.close()


def test_the_wrong_protocol_is_named(
    connect: Callable[..., Connection], certificates: Certificates, tmp_path: Path
) -> None:
    ca = f"ssl.truststore.location={certificates.ca}\n"
    plain = credentials("PLAIN", tmp_path / "token")
    with pytest.raises((BrokerUnreachable, ProtocolViolation), match="TLS"):
        connect("SECURE")
    with pytest.raises(BrokerUnreachable, match=r"want TLS or SASL \(security\.protocol\)"):
        connect("OPEN")
    with pytest.raises(BrokerUnreachable, match="TLS failed"):
        connect("PLAINTEXT", f"security.protocol=SSL\n{ca}")
    with pytest.raises(AuthenticationFailed, match=r"ILLEGAL_SASL_STATE|UNSUPPORTED"):
        connect("PLAINTEXT", f"security.protocol=SASL_PLAINTEXT\n{plain}")


class QuietServer(http.server.HTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client may end the handshake."""


class TokenEndpoint(http.server.BaseHTTPRequestHandler):
    """Gives a token to one client; other clients are sent elsewhere, with their secret."""

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"]))
        expected = base64.b64encode(b"me:client-secret").decode()
        if self.headers["Authorization"] != f"Basic {expected}":
            self.send_response(307)
            self.send_header("Location", "https://127.0.0.1:1/")
            self.end_headers()
            return
        assert form == b"grant_type=client_credentials&scope=kafka"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": token()}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint(certificates: Certificates) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.base / "broker.pem")
    with QuietServer(("127.0.0.1", 0), TokenEndpoint) as server:
        # The handler's first read does the handshake.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def test_a_token_is_fetched_for_a_client_and_its_secret(
    connect: Callable[..., Connection],
    certificates: Certificates,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"""
security.protocol=SASL_PLAINTEXT
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url={endpoint}
sasl.jaas.config={JAAS.format("oauthbearer.OAuthBearer")} \\
    clientId="me" clientSecret="client-secret" scope="kafka";
"""
    with pytest.raises(BrokerUnreachable, match=r"no token from .*: its certificate is not valid"):
        connect("OPEN", text)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    connect("OPEN", text).close()
    with pytest.raises(AuthenticationFailed, match="the token endpoint answers with status 307"):
        connect("OPEN", text.replace("client-secret", "wrong-secret"))


# -- TLS -------------------------------------------------------------------------------------------


def test_the_brokers_certificate_is_verified(
    connect: Callable[..., Connection], certificates: Certificates, tmp_path: Path
) -> None:
    plain = credentials("PLAIN", tmp_path / "token")
    text = "security.protocol=SASL_SSL\n" + plain
    ca = f"ssl.truststore.location={certificates.ca}\n"
    unknown = f"ssl.truststore.location={certificates.base / 'unknown-ca.pem'}\n"
    for trust in ("", unknown):
        with pytest.raises(BrokerUnreachable, match="its certificate is not valid: "):
            connect("SECURE", text + trust)
    connect("SECURE", text + ca, host="localhost").close()
    inline = "ssl.truststore.certificates=" + certificates.ca.read_text().replace("\n", "\\n")
    connect("SECURE", text + inline + "\n").close()


def test_the_host_is_verified_unless_the_file_says_no(
    connect: Callable[..., Connection], certificates: Certificates
) -> None:
    text = f"security.protocol=SSL\nssl.truststore.location={certificates.ca}\n"
    with pytest.raises(BrokerUnreachable, match="IP address mismatch"):
        connect("OTHER", text)
    with pytest.raises(BrokerUnreachable, match="Hostname mismatch"):
        connect("OTHER", text, host="localhost")
    connect("OTHER", text + "ssl.endpoint.identification.algorithm=\n").close()


@pytest.mark.parametrize("kind", ["file", "encrypted", "inline", "librdkafka"])
def test_the_client_proves_itself_with_a_certificate(
    connect: Callable[..., Connection], certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    base = certificates.base
    text = f"security.protocol=SSL\nssl.truststore.location={certificates.ca}\n"
    chain, key = (base / "client.crt").read_text(), (base / "client.key").read_text()
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text((base / "encrypted.key").read_text() + chain)
    store = {
        "file": f"ssl.keystore.location={base / 'client.pem'}\n",
        "encrypted": f"ssl.keystore.location={encrypted}\nssl.key.password=key-secret\n",
        "inline": "ssl.keystore.certificate.chain={}\nssl.keystore.key={}\n".format(
            chain.replace("\n", "\\n"), key.replace("\n", "\\n")
        ),
        "librdkafka": f"ssl.ca.location={certificates.ca}\nssl.key.location={base / 'client.key'}\n"
        f"ssl.certificate.location={base / 'client.crt'}\n",
    }
    connect("MUTUAL", text + store[kind]).close()
    with pytest.raises(BrokerUnreachable):
        connect("MUTUAL", text)
    if kind == "encrypted":
        with pytest.raises(InvalidConfig, match=r"the right ssl\.key\.password"):
            connect("MUTUAL", text + store[kind].replace("key-secret", "wrong"))


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_the_line_that_converts_a_store_of_java(
    connect: Callable[..., Connection], certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    base, keytool = certificates.base, require("keytool", "default-jre-headless")
    openssl = require("openssl", "openssl")
    password = ("-storepass", "secret", "-storetype", kind, "-noprompt")
    trust, store = tmp_path / "trust.store", tmp_path / "key.store"
    run(
        keytool,
        "-importcert",
        "-file",
        certificates.ca,
        "-alias",
        "ca",
        "-keystore",
        trust,
        *password,
    )
    p12 = tmp_path / "made.p12"
    run(openssl, "pkcs12", "-export", "-in", base / "client.pem", "-out", p12,
        "-passout", "pass:secret")  # fmt: skip
    run(keytool, "-importkeystore", "-srckeystore", p12, "-srcstorepass", "secret",
        "-destkeystore", store, "-deststorepass", "secret", "-deststoretype", kind)  # fmt: skip
    text = f"security.protocol=SSL\nssl.truststore.location={trust}\n"
    text += f"ssl.keystore.location={store}\nssl.key.password=secret\n"
    for _ in range(2):
        with pytest.raises(
            InvalidConfig, match=f"is a {kind} store; only PEM is supported"
        ) as error:
            connect("MUTUAL", text)
        match = re.search(r"To convert it: (.*) Then set (\S+)=(\S+?)(?: \(|$)", str(error.value))
        assert match is not None, error.value
        # The programs ask for the password, openssl also for a new one.
        line = match[1].replace(
            "openssl pkcs12", "openssl pkcs12 -passin pass:secret -passout pass:secret"
        )
        line = line.replace(
            "-importkeystore", "-importkeystore -srcstorepass secret -deststorepass secret"
        )
        line = line.replace("-list", "-list -storepass secret")
        subprocess.run(
            line, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=HANG_S
        )
        text = re.sub(f"{re.escape(match[2])}=.*", f"{match[2]}={tmp_path / match[3]}", text)
    connect("MUTUAL", text).close()


# -- the commands ----------------------------------------------------------------------------------

OF_JAVA, OF_LIBRDKAFKA, OF_VARIABLE = "Kafka's", "librdkafka's", "environment"
ACCESSES = [
    ("OPEN", "SASL_PLAINTEXT", "PLAIN", OF_JAVA),
    ("SECURE", "SASL_SSL", "PLAIN", OF_LIBRDKAFKA),
    ("OPEN", "SASL_PLAINTEXT", "SCRAM-SHA-256", OF_VARIABLE),
    ("SECURE", "SASL_SSL", "SCRAM-SHA-512", OF_JAVA),
    ("SECURE", "SASL_SSL", "OAUTHBEARER", OF_JAVA),
    ("MUTUAL", "SSL", "", OF_JAVA),
]


def command_file(base: Path, path: Path, protocol: str, mechanism: str, form: str) -> str:
    """The properties of a client that the broker accepts."""
    text = f"security.protocol={protocol}\n"
    if protocol.endswith("SSL"):
        name = "ssl.ca.location" if form == OF_LIBRDKAFKA else "ssl.truststore.location"
        text += f"{name}={base / 'ca.pem'}\n"
    if protocol == "SSL":
        return text + f"ssl.keystore.location={base / 'client.pem'}\n"
    if form == OF_JAVA:
        return text + credentials(mechanism, path)
    password = "${env:PASSWORD}" if form == OF_VARIABLE else PASSWORD
    return text + f"sasl.mechanisms={mechanism}\nsasl.username=alice\nsasl.password={password}\n"


@pytest.mark.parametrize(("listener", "protocol", "mechanism", "form"), ACCESSES)
def test_commands_read_and_write_with_the_properties_of_a_file(
    broker: Broker, ports: dict[str, int], certificates: Certificates, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, listener: str, protocol: str, mechanism: str, form: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PASSWORD", PASSWORD)
    file, place = tmp_path / "client.properties", f"kafka://127.0.0.1:{ports[listener]}/t"
    text = command_file(certificates.base, tmp_path / "token", protocol, mechanism, form)

    def called(*words: str, given: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [*KAFKAFS, words[0], "-F", file, *words[1:]],
            input=given, capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip
        assert PASSWORD not in done.stderr
        return done.returncode, done.stdout, done.stderr

    file.write_text(text)
    line = f"{listener} {mechanism}\n"
    status, _, said = called("append", place, given=line)
    assert status == 0, said
    # Only a secret that is sent without TLS is worth a word.
    is_bare = protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN"
    warning = f"kafkafs: {file}: the password is sent without encryption"
    assert said.startswith(warning) if is_bare else not said
    assert called("cat", f"{place}@-1")[:2] == (0, line)
    if mechanism == "OAUTHBEARER":
        (tmp_path / "token").write_text("x.y.")
    elif mechanism:
        monkeypatch.setenv("PASSWORD", "wrong")
        file.write_text(text.replace("secret", "wrong"))
    else:
        file.write_text(re.sub("ssl.keystore.*", "", text))
    for words in (("append", place), ("cat", place)):
        status, shown, said = called(*words, given="refused\n")
        assert (status, shown) == (3, "")
        assert re.search(rf"^kafkafs: broker 127\.0\.0\.1:{ports[listener]}: ", said, re.M), said
    file.write_text(text)
    monkeypatch.setenv("PASSWORD", PASSWORD)
    if mechanism == "OAUTHBEARER":
        (tmp_path / "token").write_text(token())
    assert called("cat", f"{place}@-1")[1] == line
