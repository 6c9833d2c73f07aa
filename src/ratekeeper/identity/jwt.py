"""The verified claims of a JSON Web Token.  Claims of a token that is not valid are ignored.

Keys come from the rules file, the environment, a file or a JWKS URL.  A thread of its own fetches the URL, so that no
request waits for it.  Until the keys have arrived, or if a token names a key that is not among them, the token is not
believed, and the client is counted by address.
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
MOST_CACHED = 8192  # verified tokens
REFRESH_AFTER = 600.0  # seconds: the age at which a JWKS is fetched again
RETRY_AFTER = 30.0  # seconds between two fetches at least, whatever key ids tokens name
LONGEST_TOKEN = 8192
MOST_BYTES = 1_000_000
NO_CLAIMS: Claims = {}
SECRETS = ("HS256", "HS384", "HS512")
PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class Tokens:
    """Verifies JSON Web Tokens with one key, or with the keys of a JWKS.

    ``fetched`` says that ``jwks`` fetches a URL: it is then called in a thread, and again when the keys are old.
    """

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
        self.verified: dict[bytes, tuple[float, Claims]] = {}  # by digest: valid until, and the claims
        self.is_remote = fetched
        if jwks is not None:
            if fetched:
                self.refresh()
            else:
                self.read_keys(jwks())

    def claims(self, text: str) -> Claims:
        """Return the claims of a token; none if it is not valid now."""
        if self.is_remote and self.clock() - self.fetched_at > REFRESH_AFTER:
            self.refresh()
        if not 0 < len(text) <= LONGEST_TOKEN:
            return NO_CLAIMS
        name = blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
        until, claims = self.verified.get(name, (0.0, NO_CLAIMS))
        if until > self.clock():
            return claims
        claims = self.verify(text)
        if claims:  # invalid tokens are not cached: their key may arrive, and forgers must not fill the cache
            if len(self.verified) >= MOST_CACHED:
                self.verified.clear()
            expires_at = float(claims.get("exp", float("inf"))) + self.leeway
            self.verified[name] = (min(expires_at, self.clock() + 60.0), claims)
        return claims

    def verify(self, text: str) -> Claims:
        key = self.key
        if self.jwks is not None:
            try:
                key_id = self.jwt.get_unverified_header(text).get("kid")
            except (self.jwt.PyJWTError, RecursionError):  # a client can nest lists as deep as it likes
                return NO_CLAIMS
            key = self.keys.get(key_id) or (
                next(iter(self.keys.values())) if len(self.keys) == 1 and key_id is None else None
            )
            if key is None:
                self.refresh()
                return NO_CLAIMS
        try:
            claims: Claims = self.jwt.decode(
                text,
                key,
                algorithms=self.algorithms,
                audience=self.audience,
                issuer=self.issuer,
                leeway=self.leeway,
                options={"verify_aud": self.audience is not None, "verify_iss": self.issuer is not None},
            )
        except (self.jwt.PyJWTError, ValueError, TypeError, NotImplementedError, RecursionError):
            return NO_CLAIMS
        return claims

    def refresh(self) -> None:
        """Fetch the JWKS in a thread, unless a thread is fetching it or it was fetched a short time ago."""
        if self.process != getpid():  # a fork copies the lock, but not the thread that would release it
            self.process, self.fetching, self.tried_at = getpid(), threading.Lock(), float("-inf")
        if not self.is_remote or self.clock() - self.tried_at < RETRY_AFTER:
            return
        if self.fetching.acquire(blocking=False):
            self.tried_at = self.clock()
            threading.Thread(target=self.fetch, name="ratekeeper-jwks", daemon=True).start()

    def fetch(self) -> None:
        try:
            self.read_keys(self.jwks())  # type: ignore[misc]
            self.fetched_at = self.clock()
        except Exception:  # the old keys stay, and a later refresh tries again
            log.warning("identity.jwt: cannot fetch the key set; using the old keys until the next attempt")
        finally:
            self.fetching.release()

    def read_keys(self, text: str | bytes) -> None:
        import json

        keys = {key.key_id: key.key for key in self.jwt.PyJWKSet.from_dict(json.loads(text)).keys}
        self.keys = keys
        self.verified = {}


def fetch_url(url: str, seconds: float = 5.0) -> bytes:
    """Fetch a URL: at most a megabyte, ``seconds`` for each read and twice that in all."""
    from urllib.request import urlopen

    deadline = time.monotonic() + 2 * seconds
    content = b""
    with urlopen(url, timeout=seconds) as response:
        while part := response.read1(65_536):
            content += part
            if len(content) > MOST_BYTES or time.monotonic() > deadline:
                raise TimeoutError(f"expected a key set of at most {MOST_BYTES:,} bytes in {2 * seconds:g} seconds")
    return content
