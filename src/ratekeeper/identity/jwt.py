"""Who a signed token says the caller is.  A claim that was not verified does not exist.

Keys come from the rules file, the environment, a file or a JWKS address.  A JWKS address is read by a thread of its
own, never on the way of a request: until its keys are there, or when a token names a key that is not, the token
is not believed and the caller is counted by address.
"""

from __future__ import annotations

import logging
import threading
import time
from hashlib import blake2b
from os import getpid
from typing import Any

from ratekeeper.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Claims = Mapping[str, Any]

log = logging.getLogger("ratekeeper")
MOST_KNOWN = 8192
REFRESH_FOR = 600.0  # seconds that a fetched JWKS is used
HURRY_FOR = 30.0  # at most so often it is fetched, whatever key ids tokens name
LONGEST_TOKEN = 8192
MOST_BYTES = 1_000_000
NOTHING: Claims = {}
SECRETS = ("HS256", "HS384", "HS512")
PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class Tokens:
    """Verifies JSON Web Tokens with one key, or with those of a JWKS."""

    def __init__(
        self,
        *,
        algorithms: Sequence[str],
        key: str | bytes | None = None,
        jwks: Callable[[], str | bytes] | None = None,
        fetched: bool = False,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        leeway: float = 0.0,
        header: str = "Authorization",
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            import jwt
        except ImportError as error:  # pragma: no cover - the suite has every extra
            raise InvalidInput(
                "identity.jwt: expected PyJWT to be installed. pip install 'ratekeeper[jwt]'."
            ) from error
        self.jwt: Any = jwt
        self.algorithms = list(algorithms)
        self.key = key
        self.jwks = jwks
        self.issuer = issuer
        self.audience = audience
        self.leeway = leeway
        self.header = header.lower().encode("latin-1")
        self.clock = clock
        self.keys: dict[str | None, Any] = {}
        self.fetched_at = self.tried_at = float("-inf")
        self.fetching = threading.Lock()
        self.process = getpid()
        self.known: dict[bytes, tuple[float, Claims]] = {}
        self.is_remote = fetched
        if jwks is not None:
            if fetched:
                self.refresh()
            else:
                self.read_keys(jwks())

    def claims(self, text: str) -> Claims:
        """The verified claims of a token; none of a token that is not good now."""
        if self.is_remote and self.clock() - self.fetched_at > REFRESH_FOR:
            self.refresh()
        if not 0 < len(text) <= LONGEST_TOKEN:
            return NOTHING
        name = blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
        until, claims = self.known.get(name, (0.0, NOTHING))
        if until > self.clock():
            return claims
        claims = self.verify(text)
        if claims:  # a bad token is judged anew: its key may have arrived, and forgers get no cache of ours
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            last = float(claims.get("exp", float("inf"))) + self.leeway
            self.known[name] = (min(last, self.clock() + 60.0), claims)
        return claims

    def verify(self, text: str) -> Claims:
        key = self.key
        if self.jwks is not None:
            try:
                key_id = self.jwt.get_unverified_header(text).get("kid")
            except self.jwt.PyJWTError:
                return NOTHING
            key = self.keys.get(key_id) or (
                next(iter(self.keys.values())) if len(self.keys) == 1 and key_id is None else None
            )
            if key is None:
                self.refresh()
                return NOTHING
        try:
            found: Claims = self.jwt.decode(
                text,
                key,
                algorithms=self.algorithms,
                audience=self.audience,
                issuer=self.issuer,
                leeway=self.leeway,
                options={"verify_aud": self.audience is not None, "verify_iss": self.issuer is not None},
            )
        except (self.jwt.PyJWTError, ValueError, TypeError, NotImplementedError):
            return NOTHING
        return found

    def refresh(self) -> None:
        """Fetch the JWKS in a thread, unless one is at it or it was tried a moment ago."""
        if self.process != getpid():  # a fork copies the lock and not the thread that would give it back
            self.process, self.fetching, self.tried_at = getpid(), threading.Lock(), float("-inf")
        if not self.is_remote or self.clock() - self.tried_at < HURRY_FOR:
            return
        if self.fetching.acquire(blocking=False):
            self.tried_at = self.clock()
            threading.Thread(target=self.fetch, name="ratekeeper-jwks", daemon=True).start()

    def fetch(self) -> None:
        try:
            self.read_keys(self.jwks())  # type: ignore[misc]
            self.fetched_at = self.clock()
        except Exception:  # the old keys stay, and a later refresh tries again
            log.warning("the key set of identity.jwt could not be fetched; the keys known so far stay")
        finally:
            self.fetching.release()

    def read_keys(self, text: str | bytes) -> None:
        import json

        keys = {key.key_id: key.key for key in self.jwt.PyJWKSet.from_dict(json.loads(text)).keys}
        self.keys = keys
        self.known = {}


def fetch_url(url: str, seconds: float = 5.0) -> bytes:
    """The answer of an https address, at most a megabyte; no part may take so long, nor all of it twice as long."""
    from urllib.request import urlopen

    until = time.monotonic() + 2 * seconds
    found = b""
    with urlopen(url, timeout=seconds) as answer:
        while part := answer.read1(65_536):
            found += part
            if len(found) > MOST_BYTES or time.monotonic() > until:
                raise TimeoutError(f"expected a key set of at most {MOST_BYTES:,} bytes in {2 * seconds:g} seconds")
    return found
