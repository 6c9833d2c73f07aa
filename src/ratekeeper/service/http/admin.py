"""``/v1/admin/...``: overrides, the kill switch, a reload, and the digests of clients, for the admin token alone."""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput, InvalidRules, shown
from ratekeeper.identity.address import parse_address
from ratekeeper.keys import encode
from ratekeeper.service.http.request_body import body_of, expect_fields, tuple_of
from ratekeeper.service.http.response import as_json, problem, response
from ratekeeper.sinks.event import anonymous, anonymous_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.server import Call


class Admin:
    """Changes while the service runs."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.calls: dict[str, Callable[[Call], bytes | Awaitable[bytes]]] = {
            "/v1/admin/switch": self.set_mode,
            "/v1/admin/kill": self.kill,
            "/v1/admin/reload": self.reload,
            "/v1/admin/digest": self.digest,
        }

    def serve(self, call: Call) -> bytes | Awaitable[bytes]:
        """Answer any of the calls, if the caller has the admin token."""
        token = self.decider.options.admin_token
        if call.method != "POST":
            return problem(405, f"{call.path}: expected POST, got {call.method}.", [(b"allow", b"POST")])
        if token is None:
            return problem(403, "admin: expected a service that was started with --admin-token.")
        if not has_token(call, token):
            return unauthorised()
        try:
            return self.calls[call.path](call)
        except InvalidRules as error:
            return problem(422, str(error))
        except InvalidInput as error:
            return problem(400, str(error))

    def set_mode(self, call: Call) -> bytes:
        """Override the mode of a rule, or of a limit of an Envoy file; null restores the mode of the file."""
        body = body_of(call)
        expect_fields(body, frozenset({"rule", "mode"}))
        name, mode = body.get("rule"), body.get("mode")
        modes = self.decider.file_modes()
        if not isinstance(name, str) or name not in modes:
            raise InvalidInput(f"rule: expected the name of a rule, got {shown(name)}.")
        self.decider.overrides.set(name, mode)
        self.decider.apply_overrides()
        in_force = self.decider.overrides.mode(name, modes[name])
        return response(200, as_json({"rule": name, "mode": in_force}))

    def kill(self, call: Call) -> bytes:
        """Turn all rules off at once, or back on."""
        killed = body_of(call).get("killed")
        if not isinstance(killed, bool):
            raise InvalidInput(f"killed: expected true or false, got {shown(killed)}.")
        self.decider.overrides.kill(killed)
        self.decider.apply_overrides()
        return response(200, as_json({"killed": self.decider.overrides.is_killed}))

    async def reload(self, call: Call) -> bytes:
        """Read the rules file again, in this worker; SIGHUP reaches all workers."""
        try:
            await self.decider.reload_aside()
        except InvalidRules as error:
            return problem(422, str(error))
        except InvalidInput as error:
            return problem(400, str(error))
        return response(200, as_json({"rules": len(self.decider.policy.rules)}))

    def digest(self, call: Call) -> bytes:
        """The digest of an address or a key.  Only the admin may ask: trying every address would undo all digests."""
        body = body_of(call)
        expect_fields(body, frozenset({"address", "key"}))
        if len(body) != 1:
            raise InvalidInput(f"{call.path}: expected one of address and key, got {'both' if body else 'neither'}.")
        secret = self.decider.settings.secret
        if "key" in body:
            key = body["key"]
            key = tuple_of(key) if isinstance(key, list) else key
            return response(200, as_json({"digest": anonymous_key(encode(key), secret)}))
        address = body["address"]
        if not isinstance(address, str) or parse_address(address) is None:
            raise InvalidInput(f"address: expected an address such as 203.0.113.9, got {shown(address)}.")
        counted = self.decider.policy.compiled.identity.addresses.parse(address).subject
        return response(200, as_json({"digest": anonymous(counted, secret), "counted": counted}))


def has_token(call: Call, token: str) -> bool:
    scheme, _, sent = (call.value(b"authorization") or "").partition(" ")
    return scheme.lower() == "bearer" and compare_digest(sent.strip().encode(), token.encode())


def unauthorised() -> bytes:
    return problem(401, "expected 'Authorization: Bearer TOKEN' with the token.", [(b"www-authenticate", b"Bearer")])
