"""ratekeeper doctor: what it finds on real servers, services and files, and that it changes nothing."""

import json
from types import NoneType

import pytest

from ratekeeper import Limiter
from ratekeeper.commands.doctor import cure_of, listening
from ratekeeper.stores.shared import remove
from tests.commands.command import run
from tests.servers import Server, closed_port
from tests.service.certificates import Authority
from tests.service.running import running


def findings(*words, **options):
    result = run("doctor", *words, "--json", **options)
    assert isinstance(result.exception, (SystemExit, NoneType)), result.exception
    return {(each["subject"], each["text"]): each["advice"] for each in json.loads(result.output)}, result.exit_code


def texts_of(found, subject):
    return {text: advice for (each, text), advice in found.items() if each == subject}


def write(tmp_path, text, mode=0o600):
    path = tmp_path / "rules.toml"
    path.write_text(text + '[[rules]]\nname = "a"\nlimit = "9/minute"\n')
    path.chmod(mode)
    return path


def test_a_file_that_is_fine(tmp_path):
    found, _ = findings(write(tmp_path, ""), "--store", "memory://")
    assert texts_of(found, "rules.toml") == {"no trusted proxy: clients are peers": ""}


@pytest.mark.parametrize(
    ("settings", "mode", "text", "advice"),
    [
        ('trusted_proxies = ["10.0.0.0/8"]\n', 0o600, "trusted_proxies holds 10.0.0.0/8, 16,777,216 addresses",
         "Each of them can choose its client's address. Name the proxies alone."),
        ('secret = "abc"\n', 0o644, "holds secret, and everybody may read it",
         "chmod 600 rules.toml, or move the secret into the environment."),
        ('store = "redis://:pw@127.0.0.1:1/0"\n', 0o640, "holds the password in store, and its group may read it",
         "chmod 600 rules.toml, or move the secret into the environment."),
        ("", 0o622, "others may write it", "chmod go-w rules.toml: who writes it decides every limit."),
        ('client_header = "X-Real-IP"\n', 0o600,
         "client_header: 'X-Real-IP' is ignored, because trusted_proxies is empty.", "See ratekeeper check."),
    ],
)  # fmt: skip
def test_files(tmp_path, settings, mode, text, advice):
    found, code = findings(write(tmp_path, settings, mode), "--store", "memory://")
    assert texts_of(found, "rules.toml")[text] == advice
    assert code == 1


def test_a_redis_that_forgets(tmp_path):
    server = Server(**{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru", "appendonly": "no"})
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        found, code = findings("--store", url)
        texts = texts_of(found, url)
        (forgets,) = [text for text in texts if "evicts keys (allkeys-lru)" in text]
        assert texts[forgets].startswith("CONFIG SET maxmemory-policy noeviction")
        assert any("keeps nothing on disk" in text for text in texts)
        assert code == 1
    finally:
        server.close()


def test_a_redis_that_does_not_answer():
    with closed_port() as port:
        found, code = findings("--store", f"redis://:hidden@127.0.0.1:{port}/0")
    assert code == 1
    assert any("does not answer" in text for _, text in found)
    assert "hidden" not in str(found)


def test_shared_memory_that_is_open_to_others():
    with Limiter("5/minute", store="shm://doctor-test?mode=666") as limiter:
        limiter.check("a")
        found, code = findings()
    remove("doctor-test")
    (text,) = texts_of(found, "shm://doctor-test")
    assert text.startswith("every user may open it")
    assert code == 1


def test_a_service_without_and_with_tokens():
    for options, caller, admin in [
        ({}, "anybody who reaches it may ask and use up limits", None),
        ({"token": "t", "admin_token": "a"}, "callers need a token", "changes need the admin token"),
    ]:
        with running(**options) as service:
            host, port = service.addresses["http"]
            before = service.call("GET", "/v1/status", headers={"authorization": "Bearer t"})[2]
            found, _ = findings("--url", f"http://{host}:{port}")
            texts = texts_of(found, f"http://{host}:{port}")
            assert caller in texts
            assert admin is None or texts[admin] == ""
            after = service.call("GET", "/v1/status", headers={"authorization": "Bearer t"})[2]
            assert {**before, "time": 0}.keys() == {**after, "time": 0}.keys()


def test_where_a_process_listens():
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert ("127.0.0.1", listener.getsockname()[1]) in listening(os.getpid())


def test_a_url_that_is_none():
    result = run("doctor", "--url", "ftp://localhost:8080")
    assert result.exit_code == 2
    assert result.output.strip() == "--url: expected a URL such as http://127.0.0.1:8080, got 'ftp://localhost:8080'."


@pytest.mark.parametrize(
    ("user", "why", "advice"),
    [
        (":wrong@", "refused to be asked (WRONGPASS invalid username-password pair or user is disabled.)",
         "Correct the user and the password in the URL."),
        ("", "refused to be asked (NOAUTH Authentication required.)", "Correct the user and the password in the URL."),
    ],
)  # fmt: skip
def test_a_redis_whose_password_is_another(user, why, advice):
    """A wrong password was taken for a server that hides its configuration."""
    server = Server(requirepass="right")
    try:
        place = f"127.0.0.1:{server.port}"
        found, code = findings("--store", f"redis://{user}{place}")
        assert texts_of(found, f"redis://{place}") == {f"does not answer: {why}": advice}
        assert code == 1
        found, _ = findings("--store", f"redis://:right@{place}")
        assert f"{place} evicts no keys" in texts_of(found, f"redis://{place}")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("could not be asked ([SSL: CERTIFICATE_VERIFY_FAILED] self-signed)", "?tls_ca=FILE in the URL."),
        ("refused CLUSTER: ERR This instance has cluster support disabled", "use redis:// in the URL."),
        ("could not be asked (timed out)", "rediss:// if and only if it speaks TLS."),
    ],
)
def test_what_to_do_about_a_store_that_does_not_answer(why, advice):
    assert cure_of(why).endswith(advice)


def test_a_service_that_speaks_tls_and_asks_for_certificates(tmp_path):
    authority = Authority(tmp_path)
    server, client = authority.issue("localhost"), authority.issue("client")
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in client))
    options = {"tls_cert": server[0], "tls_key": server[1], "tls_client_ca": authority.path}
    with running(**options) as service:
        url = f"https://localhost:{service.addresses['http'][1]}"

        def said(*words):
            return texts_of(findings("--url", url, *words)[0], url)

        assert said() == {"its certificate is of an unknown authority": "Name the authority with --ca FILE."}
        (advice,) = said("--ca", authority.path).values()
        assert advice == "If it asks for a certificate, give one with --cert FILE."
        found = said("--ca", authority.path, "--cert", both)
        assert found["callers need a certificate"] == ""
        assert found["anybody with a certificate may ask and use up limits"] == ""
    result = run("doctor", "--url", url, "--ca", tmp_path / "none")
    assert result.exit_code != 0
    assert "--ca: expected a file in PEM" in result.output + result.stderr
