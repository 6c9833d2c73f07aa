"""``ratekeeper digest``: the digest under which the dashboard, logs and metrics show a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors
from ratekeeper.commands.service_client import AdminToken, Ca, Cert, ServiceClient, trust_of


def digest(
    client: Annotated[
        list[str],
        typer.Argument(metavar="ADDRESS|KEY", help="An address, or a key; several words are the parts of one key."),
    ],
    rules: Annotated[
        Path | None,
        typer.Option("--rules", "-r", metavar="FILE", help="The rules file of the service, with its secret."),
    ] = None,
    url: Annotated[
        str,
        typer.Option(metavar="URL", envvar="RATEKEEPER_URL", help="URL of the running service, asked without --rules."),
    ] = "http://127.0.0.1:8080",
    is_key: Annotated[
        bool, typer.Option("--key", help="Read an address as a key of a limit that callers name.")
    ] = False,
    admin_token: AdminToken = None,
    ca: Ca = None,
    cert: Cert = None,
    as_json: bool = AS_JSON,
) -> None:
    """Print the digest under which the dashboard, top, logs and metrics show a client.

    \b
    ratekeeper digest 203.0.113.9
    ratekeeper digest 203.0.113.9 --rules rules.toml
    ratekeeper digest user:42 --url https://limits.example.com --ca ca.pem

    Digests are keyed with `secret` of the rules file.  A service without one draws a random key when it starts, so only
    that service can tell, and it tells the owner of the admin token alone.
    """
    from ratekeeper.identity.address import parse_address

    is_address = not is_key and len(client) == 1 and parse_address(client[0]) is not None
    key = client[0] if len(client) == 1 else tuple(client)
    with report_errors(as_json):
        if rules is not None:
            answer = digest_by(rules, key, is_address)
        else:
            service = ServiceClient(url, admin_token, "--admin-token", trust_of(ca, cert))
            answer = service.ask("/v1/admin/digest", {"address" if is_address else "key": key})
    if as_json:
        print_json(answer)
    else:
        out.print(answer["digest"], markup=False)


def digest_by(path: Path, key: Any, is_address: bool) -> dict[str, str]:
    """The digest by the secret and the prefixes of a rules file."""
    from ratekeeper.errors import InvalidInput
    from ratekeeper.keys import encode
    from ratekeeper.rules.policy import Policy
    from ratekeeper.sinks.event import anonymous, anonymous_key

    compiled = Policy.load(path, store="memory://").compiled
    secret = compiled.settings.secret
    if secret is None:
        raise InvalidInput(
            f"{path.name}: expected secret = '...' at the top, got none, so each service draws a random one. "
            "Add one, or ask the running service with --url instead of --rules."
        )
    if not is_address:
        return {"digest": anonymous_key(encode(key), secret)}
    counted = compiled.identity.addresses.parse(key).subject
    return {"digest": anonymous(counted, secret), "counted": counted}
