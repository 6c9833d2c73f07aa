"""Signed tokens: what is verified counts, nothing else does."""

import base64
import contextlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from ratekeeper import InvalidRules, Policy, Request
from ratekeeper.identity.jwt import RETRY_AFTER, Tokens, fetch_url

SECRET = "a secret that is long enough for every one of them: " + "x" * 32
FAR = 4_000_000_000


def public_pem(key):
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


@pytest.fixture(scope="module")
def keys():
    return {
        "RS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


def policy_with(**jwt_settings):
    return Policy.parse(
        {
            "identity": {"user": "jwt:sub", "jwt": jwt_settings},
            "tiers": {"from": "jwt:plan", "default": "free"},
            "rules": [{"name": "r", "by": "user", "limit": {"free": "10/minute", "paid": "1000/minute"}}],
        }
    )


def seen(policy, token, peer="203.0.113.9"):
    """Who is counted, and in which tier."""
    from ratekeeper.identity.identity import Caller

    headers = {"Authorization": f"Bearer {token}"}
    caller = Caller(policy.compiled.identity, Request(peer=peer, headers=headers))
    return caller.user, caller.tier


def test_a_secret():
    policy = policy_with(secret=SECRET)
    good = jwt.encode({"sub": "42", "plan": "paid"}, SECRET, "HS256")
    assert seen(policy, good) == ("user:42", "paid")
    assert seen(policy, good) == ("user:42", "paid")  # from the cache


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_public_keys(keys, algorithm):
    policy = policy_with(key=public_pem(keys[algorithm]), algorithms=[algorithm])
    assert seen(policy, jwt.encode({"sub": "42"}, keys[algorithm], algorithm)) == ("user:42", "free")


def unsigned(claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."


def test_what_is_not_verified_does_not_exist(keys):
    policy = policy_with(secret=SECRET, issuer="me", audience="you")
    claims = {"sub": "42", "plan": "paid", "iss": "me", "aud": "you"}
    assert seen(policy, jwt.encode(claims, SECRET, "HS256")) == ("user:42", "paid")
    for bad in [
        unsigned(claims),
        jwt.encode(claims, SECRET + "!", "HS256"),
        jwt.encode(claims, SECRET, "HS512"),
        jwt.encode({**claims, "exp": 1}, SECRET, "HS256"),
        jwt.encode({**claims, "nbf": FAR}, SECRET, "HS256"),
        jwt.encode({**claims, "iss": "them"}, SECRET, "HS256"),
        jwt.encode({**claims, "aud": "them"}, SECRET, "HS256"),
        jwt.encode({"sub": "42", "plan": "paid"}, SECRET, "HS256"),
        jwt.encode(claims, SECRET, "HS256")[:-2],
        "",
        "x",
        "a.b.c",
        "x" * 10_000,
        "é" * 10,
    ]:
        assert seen(policy, bad) == (None, "free"), bad[:80]


def test_a_public_key_is_not_a_secret(keys):
    """Algorithm confusion: a token signed with the public key as if it were a secret."""
    pem = public_pem(keys["RS256"])
    policy = policy_with(key=pem)
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(b'{"sub":"42"}').rstrip(b"=")
    import hmac

    signature = base64.urlsafe_b64encode(hmac.digest(pem.encode(), header + b"." + body, "sha256")).rstrip(b"=")
    assert seen(policy, b".".join([header, body, signature]).decode()) == (None, "free")
    with pytest.raises(InvalidRules, match="an algorithm that fits key"):
        policy_with(key=pem, algorithms=["HS256"])


def test_a_remembered_token_expires():
    seconds = [0.0]
    tokens = Tokens(algorithms=["HS256"], key=SECRET, clock=lambda: seconds[0])
    token = jwt.encode({"sub": "42", "exp": FAR}, SECRET, "HS256")
    judged = []
    verify = tokens.verify
    tokens.verify = lambda text: judged.append(seconds[0]) or verify(text)
    for seconds[0] in (FAR - 100.0, FAR - 50.0, FAR - 39.0, FAR - 1.0, FAR + 0.0):
        tokens.claims(token)
    assert judged == [FAR - 100.0, FAR - 39.0, FAR + 0.0]  # a minute later, and as soon as it has expired


def jwks(**keys):
    published = []
    for name, key in keys.items():
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        published.append({**public, "kid": name, "alg": "ES256", "use": "sig"})
    return json.dumps({"keys": published})


def test_a_key_set_in_a_file(keys, tmp_path):
    (tmp_path / "jwks.json").write_text(jwks(one=keys["ES256"]))
    (tmp_path / "rules.json").write_text(
        json.dumps(
            {
                "identity": {"user": "jwt:sub", "jwt": {"jwks_file": "jwks.json"}},
                "rules": [{"name": "r", "by": "user", "limit": "1/minute"}],
            }
        )
    )
    policy = Policy.load(tmp_path / "rules.json")
    good = jwt.encode({"sub": "42"}, keys["ES256"], "ES256", headers={"kid": "one"})
    assert seen(policy, good)[0] == "user:42"
    assert seen(policy, jwt.encode({"sub": "42"}, keys["ES256"], "ES256", headers={"kid": "two"}))[0] is None
    assert seen(policy, jwt.encode({"sub": "42"}, keys["ES256"], "ES256"))[0] == "user:42"  # there is only one key


def test_a_key_set_at_an_address_is_fetched_beside_the_requests(keys):
    answers = [jwks(one=keys["ES256"])]
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[-1].encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        policy = policy_with(jwks_url=f"http://127.0.0.1:{server.server_port}/keys")
        tokens = policy.compiled.identity.tokens
        with tokens.fetching:  # the fetching thread has finished
            pass
        token = jwt.encode({"sub": "42"}, keys["ES256"], "ES256", headers={"kid": "one"})
        assert seen(policy, token)[0] == "user:42"
        other = ec.generate_private_key(ec.SECP256R1())
        rotated = jwt.encode({"sub": "43"}, other, "ES256", headers={"kid": "two"})
        answers.append(jwks(two=other))
        assert seen(policy, rotated)[0] is None  # unknown key: not believed, and not fetched again at once
        assert len(requests) == 1
        tokens.tried_at -= RETRY_AFTER + 1
        assert seen(policy, rotated)[0] is None  # this one starts the fetch
        with tokens.fetching:
            pass
        assert seen(policy, rotated)[0] == "user:43"
        assert seen(policy, token)[0] is None  # its key is gone
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            "rules: identity.jwt: expected one of secret_env, secret, key, key_file, jwks_file, jwks_url. It verifies",
        ),
        ({"secret": "a", "key": "b"}, "got ['secret', 'key']"),
        (
            {"secret_env": "RATEKEEPER_NO_SUCH"},
            "expected an environment variable that is set, got 'RATEKEEPER_NO_SUCH'",
        ),
        ({"jwks_url": "http://example.com/keys"}, "expected an https URL"),
        ({"jwks_file": "no such file"}, "expected a file that can be read"),
        ({"secret": SECRET, "algorithms": ["none"]}, "expected an algorithm that fits secret"),
    ],
)
def test_mistakes_raise_at_once(settings, message):
    with pytest.raises(InvalidRules) as caught:
        policy_with(**settings)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_key_set_that_cannot_be_fetched_is_tried_again_and_believes_nobody(keys):
    tries = []

    def fail():
        tries.append(1)
        raise OSError

    seconds = [1000.0]
    tokens = Tokens(algorithms=["ES256"], jwks=fail, fetched=True, clock=lambda: seconds[0])
    for _ in range(3):
        with tokens.fetching:  # the fetching thread has finished
            pass
        assert tokens.claims(jwt.encode({"sub": "42"}, keys["ES256"], "ES256", headers={"kid": "one"})) == {}
        seconds[0] += RETRY_AFTER + 1
    with tokens.fetching:
        pass
    assert len(tries) == 3


def test_a_child_fetches_the_keys_that_its_parent_was_fetching_when_it_forked(keys):
    """A fork copies the lock that says that somebody is at it, and not the thread that is."""
    started, let_go = threading.Event(), threading.Event()
    text = jwks(one=keys["ES256"])

    def fetch():
        started.set()
        let_go.wait(30)
        return text

    tokens = Tokens(algorithms=["ES256"], jwks=fetch, fetched=True)
    assert started.wait(30)
    child = os.fork()
    if not child:
        let_go.set()
        tokens.refresh()
        while not tokens.keys:
            pass
        os._exit(7)
    let_go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_key_set_without_end_is_given_up(monkeypatch):
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 10_000)

        def log_message(self, *words): ...

    server = HTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(TimeoutError, match="at most 1,000,000 bytes in 10 seconds"):
            fetch_url(f"http://127.0.0.1:{server.server_port}/")
        slow = iter([0.0])
        monkeypatch.setattr("ratekeeper.identity.jwt.time.monotonic", lambda: next(slow, 21.0))
        with pytest.raises(TimeoutError):
            fetch_url(f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        server.server_close()
