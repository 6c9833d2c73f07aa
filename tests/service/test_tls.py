"""TLS on every listener: handshakes, client certificates, renewal without losing a connection, and mistakes."""

import asyncio
import http.client
import socket
import ssl

import grpc
import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2

from ratekeeper.errors import InvalidInput
from ratekeeper.service.options import Options
from ratekeeper.service.tls import Certificates, certificates_of
from tests import tier
from tests.service.certificates import Authority
from tests.service.running import ANY, running


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def client_context(authority, identity=None):
    context = ssl.create_default_context(cafile=authority.path)
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


def connected(service, name, context):
    raw = socket.create_connection(service.addresses[name], 30)
    try:
        return context.wrap_socket(raw, server_hostname="localhost")
    except BaseException:
        raw.close()
        raise


def get(service, context, path="/healthz"):
    connection = http.client.HTTPSConnection("localhost", service.addresses["http"][1], timeout=30, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ping(service, context):
    with connected(service, "resp", context) as client:
        client.sendall(b"*1\r\n$4\r\nPING\r\n")
        return client.recv(100)


def should_rate_limit(service, authority, identity=None, metadata=()):
    parts = [None, None] if identity is None else [identity[1].read_bytes(), identity[0].read_bytes()]
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), *parts)
    with grpc.secure_channel(f"localhost:{service.addresses['grpc'][1]}", credentials) as channel:
        call = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            rls_pb2.RateLimitRequest.SerializeToString,
            rls_pb2.RateLimitResponse.FromString,
        )
        entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="path", value="/")
        descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry])
        request = rls_pb2.RateLimitRequest(domain="edge", descriptors=[descriptor])
        return call(request, timeout=20, metadata=metadata).overall_code


def subject(service, name, context):
    """The name in the certificate that a listener shows."""
    with connected(service, name, context) as client:
        return dict(part[0] for part in client.getpeercert()["subject"])["commonName"]


def options_for(authority, name="server", **more):
    certificate, key = authority.issue(name)
    return {"tls_cert": certificate, "tls_key": key, "resp": ANY, "grpc": ANY, **more}


def test_every_listener_speaks_tls_and_nothing_else(authority):
    with running(**options_for(authority)) as service:
        context = client_context(authority)
        assert get(service, context) == (200, b"ok\n")
        assert ping(service, context) == b"+PONG\r\n"
        assert should_rate_limit(service, authority) == rls_pb2.RateLimitResponse.OK
        for name in ("http", "resp"):
            with connected(service, name, context) as client:
                assert client.version() in ("TLSv1.2", "TLSv1.3")
            with socket.create_connection(service.addresses[name], 30) as client:
                client.sendall(b"PING\r\n\r\n\r\n")
                try:
                    received = client.recv(100)
                except ConnectionResetError:
                    received = b""
                assert not received.startswith((b"+", b"HTTP"))
        old = client_context(authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, OSError)):
            connected(service, "http", old).close()


def test_a_client_without_a_certificate_of_the_authority_is_refused(authority, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger").issue("client")
    with running(**options_for(authority, tls_client_ca=authority.path)) as service:
        known = authority.issue("client")
        assert get(service, client_context(authority, known)) == (200, b"ok\n")
        assert ping(service, client_context(authority, known)) == b"+PONG\r\n"
        assert should_rate_limit(service, authority, known) == rls_pb2.RateLimitResponse.OK
        for identity in (None, stranger):
            context = client_context(authority, identity)
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                get(service, context)
            try:
                reply = ping(service, context)
            except OSError:
                reply = b""
            assert reply == b""
            with pytest.raises(grpc.RpcError) as caught:
                should_rate_limit(service, authority, identity)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_certificates_are_renewed_and_open_connections_go_on(authority, tmp_path, caplog):
    options = options_for(authority, "first", tls_client_ca=authority.path)
    known = authority.issue("client")
    with running(**options) as service:
        context = client_context(authority, known)
        with connected(service, "http", context) as http_client, connected(service, "resp", context) as resp_client:
            assert subject(service, "http", context) == "first"
            (tmp_path / "new").mkdir()
            newcomer = Authority(tmp_path / "new", "newcomer")
            authority.issue("second", file="first")  # the same files
            authority.path.write_bytes(authority.path.read_bytes())
            both = options["tls_client_ca"]
            service.run(reload(service))
            assert subject(service, "http", context) == subject(service, "resp", context) == "second"
            assert should_rate_limit(service, authority, known) == rls_pb2.RateLimitResponse.OK
            http_client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert http_client.recv(100).startswith(b"HTTP/1.1 200")
            resp_client.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert resp_client.recv(100) == b"+PONG\r\n"
            # Another authority: those who show the certificate of the old one are strangers now.
            trusted = authority.path.read_bytes()
            both.write_bytes(newcomer.path.read_bytes())
            service.run(reload(service))
            root = tmp_path / "root.pem"
            root.write_bytes(trusted)
            accepted = ssl.create_default_context(cafile=root)
            accepted.load_cert_chain(*newcomer.issue("client"))
            assert get(service, accepted) == (200, b"ok\n")
            refused = ssl.create_default_context(cafile=root)
            refused.load_cert_chain(*known)
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                get(service, refused)
            # A mistake leaves everything as it is.
            options["tls_cert"].write_text("nonsense")
            service.run(reload(service))
            assert get(service, accepted) == (200, b"ok\n")
    assert "certificates not reloaded, the present ones stay: --tls-cert, --tls-key: expected" in caplog.text


async def reload(service):
    await service.worker.reload()
    if service.worker.renewal is not None:
        await service.worker.renewal


def test_no_connection_is_lost_while_certificates_are_renewed(authority):
    rounds, clients = tier.steps(10, 3), tier.steps(8, 3)
    with running(**options_for(authority)) as service:
        context = client_context(authority)

        async def main():
            statuses = []

            async def ask():
                for _ in range(rounds):
                    reader, writer = await asyncio.open_connection(
                        *service.addresses["http"], ssl=context, server_hostname="localhost"
                    )
                    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    statuses.append((await reader.read()).split(b"\r\n")[0])
                    writer.close()

            async def renew():
                for _ in range(rounds):
                    future = asyncio.run_coroutine_threadsafe(reload(service), service.loop)
                    await asyncio.wrap_future(future)

            await asyncio.gather(renew(), *[ask() for _ in range(clients)])
            return statuses

        assert asyncio.run(main()) == [b"HTTP/1.1 200 OK"] * rounds * clients


def test_mistakes_are_found_before_anything_listens(authority, tmp_path):
    certificate, key = authority.issue("server")
    other = authority.issue("other")[1]
    secret = authority.issue("locked", passphrase="pass phrase")
    cases = [
        (
            {"tls_cert": certificate},
            "--tls-cert, --tls-key: expected both or none. Give the certificate and its key.",
        ),
        ({"tls_client_ca": certificate}, "--tls-client-ca: expected --tls-cert and --tls-key beside it, got none."),
        (
            {"tls_cert": tmp_path / "none", "tls_key": key},
            f"--tls-cert: expected a file that can be read, got '{tmp_path / 'none'}' (No such file or directory).",
        ),
        (
            {"tls_cert": certificate, "tls_key": other},
            f"--tls-key: expected the private key of the certificate in '{certificate}', got another key.",
        ),
        (
            {"tls_cert": secret[0], "tls_key": secret[1]},
            "--tls-key: expected a key without a passphrase, because a service cannot be asked for it.",
        ),
        (
            {"tls_cert": certificate, "tls_key": key, "tls_client_ca": key},
            f"--tls-client-ca: expected certificates of authorities in PEM, got '{key}' (NO_CERTIFICATE_OR_CRL_FOUND).",
        ),
    ]
    for options, message in cases:
        with pytest.raises(InvalidInput) as caught:
            certificates_of(Options(**options))
        assert str(caught.value) == message
    with pytest.raises(InvalidInput, match="expected a certificate chain and its private key in PEM, got"):
        Certificates(key, key, None)
    assert certificates_of(Options()) is None


def test_a_request_that_is_refused_midway_gets_its_answer_over_tls(authority):
    with running(**options_for(authority)) as service, connected(service, "http", client_context(authority)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 431")
