"""TLS to one server and to a cluster, with and without certificates of clients."""

import asyncio
import socket
import subprocess
import threading

import pytest
import trio

from ratekeeper import AsyncLimiter, Limiter, native
from ratekeeper.check import Check
from ratekeeper.stores.redis import connection
from tests.servers import Server, free_port


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate that signs itself, for a server and for a client."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return key, certificate


def secured(certificate, clients="no", **options):
    """A server with a port for TLS; its certificate is the authority for its clients' too."""
    key, text = certificate
    files = {"tls-cert-file": text, "tls-key-file": key, "tls-ca-cert-file": text, "tls-auth-clients": clients}
    return Server(**{"tls-port": free_port(), **files, **options})


def test_tls(certificate):
    server = secured(certificate)
    try:
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10"
        trusting = f"{url}&tls_ca={certificate[1]}"
        limiter = Limiter("5/minute", store=trusting)
        assert (limiter.check("k").reason, limiter.check("k").remaining) == ("", 3)
        limiter.close()

        async def main():
            async with AsyncLimiter("5/minute", store=trusting) as limiter:
                assert (await limiter.check("k")).remaining == 2
                assert limiter.store.connections().server.wire.file >= 0  # read ahead of the loop, as a plain one

        asyncio.run(main())

        async def on_trio():
            limiter = AsyncLimiter("9/minute", store=trusting, name="on trio")
            admitted = []

            async def call():
                admitted.append(bool(await limiter.check("k")))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(call)
            assert (admitted.count(True), (await limiter.peek("k")).reason) == (9, "")
            await limiter.close()

        trio.run(on_trio)
        assert "certificate verify failed" in Limiter("5/minute", store=url).check("k").reason.lower()
        limiter = Limiter("5/minute", store=f"{url}&tls_verify=off")
        assert (limiter.check("k").reason, limiter.peek("k").remaining) == ("", 1)
        limiter.close()
    finally:
        server.close()


def test_tls_with_certificates_of_clients(certificate):
    server = secured(certificate, clients="yes")
    try:
        key, text = certificate
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10&tls_ca={text}"
        limiter = Limiter("5/minute", store=f"{url}&tls_certificate={text}&tls_key={key}")
        assert (limiter.check("k").reason, limiter.peek("k").remaining) == ("", 4)
        limiter.close()
        assert Limiter("5/minute", store=url, on_store_error="deny").check("k").reason.startswith("deny: ")
    finally:
        server.close()


@pytest.mark.full  # it starts a cluster
def test_tls_to_a_cluster(certificate):
    server = secured(certificate, **{"cluster-enabled": "yes", "tls-cluster": "yes"})
    try:
        server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in server.client().execute_command("CLUSTER", "INFO"):
            server.client().execute_command("WAIT", 1, 20)  # 20 ms
        url = f"redis+cluster://127.0.0.1:{server.options['tls-port']}?deadline=10&tls=on&tls_ca={certificate[1]}"
        limiter = Limiter(["5/minute", "9/hour"], store=url)
        assert (limiter.check("k").reason, limiter.check("k").remaining) == ("", 3)
        assert limiter.store.connections.topology.slots.masters[0] == ("127.0.0.1", server.options["tls-port"])
        limiter.close()
    finally:
        server.close()


def reasons(url):
    """Why a thread, and a task, used the fallback."""

    async def main():
        async with AsyncLimiter("5/minute", store=url) as limiter:
            return (await limiter.check("k")).reason

    with Limiter("5/minute", store=url) as limiter:
        return [limiter.check("k").reason, asyncio.run(main())]


def test_a_handshake_that_fails_is_an_outage_that_says_why(certificate):
    server = secured(certificate)
    try:
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10"
        for reason in reasons(url):
            assert reason.startswith("local: could not be reached (")
            assert "certificate verify failed" in reason.lower()
    finally:
        server.close()


@pytest.mark.parametrize("answer", [b"-ERR unknown command\r\n", b""])
def test_a_server_that_speaks_no_tls_is_an_outage(answer):
    def serve(calls):
        for _ in range(calls):
            with listener.accept()[0] as client:
                client.recv(65536)
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(2,))
        server.start()
        found = reasons(f"rediss://127.0.0.1:{listener.getsockname()[1]}?deadline=10")
        server.join()
    assert [reason.startswith("local: could not be reached (") for reason in found] == [True, True]


@pytest.mark.parametrize("core", [native.core, None], ids=["native", "pure"])
def test_threads_and_tasks_on_tls_get_exactly_the_limit_and_then_the_fallback(certificate, monkeypatch, core):
    monkeypatch.setattr(connection, "core", core)
    server = secured(certificate)
    url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10&tls_ca={certificate[1]}"
    limiter = Limiter("500 per 50 days", store=url, name="n")
    admitted = []

    def run():
        admitted.append(sum(bool(limiter.check("k")) for _ in range(40)))

    async def main():
        other = AsyncLimiter("500 per 50 days", store=url, name="n")
        found = await asyncio.gather(*[other.check("k") for _ in range(300)])
        long = AsyncLimiter("3000/minute sliding_log", store=url)
        assert await long.check("k", cost=2900)  # more than one record of TLS each way
        assert len((await long.store.states((Check(long.name, "k", long.limits, 1),)))[1][0]) == 2900
        server.kill()
        assert (await other.check("another")).reason.startswith("local: lost the connection")
        await other.close()
        await long.close()
        return sum(map(bool, found))

    try:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(admitted) + asyncio.run(main()) == 500
        assert limiter.check("another").reason.startswith("local: ")
    finally:
        limiter.close()
        server.close()
