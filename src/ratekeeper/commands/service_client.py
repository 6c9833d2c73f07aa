"""Ask a running service over HTTP: with a token, over TLS, and with an error that says what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ratekeeper.commands.output import NO_ANSWER, CommandFailed
from ratekeeper.errors import InvalidInput, shown

Url = Annotated[str, typer.Argument(metavar="URL", envvar="RATEKEEPER_URL", help="URL of the running service.")]
Token = Annotated[
    str | None, typer.Option(metavar="TEXT", envvar="RATEKEEPER_TOKEN", help="Bearer token of the service.")
]
AdminToken = Annotated[
    str | None, typer.Option(metavar="TEXT", envvar="RATEKEEPER_ADMIN_TOKEN", help="Admin token of the service.")
]
Ca = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Authority (PEM) that has signed the certificate of the service.")
]
Cert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate and key (PEM) to show to a service that asks for one.")
]

PATIENCE = 3.0  # seconds for each answer


class ServiceClient:
    """Calls one service.  ``token`` is sent to it alone: a redirect is an error."""

    def __init__(self, url: str, token: str | None, token_option: str, trust: Any = None) -> None:
        self.base = base_of(url)
        self.token = token
        self.token_option = token_option
        self.trust = trust

    def ask(self, path: str, body: object = None) -> Any:
        """The answer to a call, parsed; ``body`` makes it a POST."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

        class NoRedirect(HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        request = Request(self.base + path, None if body is None else json.dumps(body).encode())
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with build_opener(NoRedirect, HTTPSHandler(context=self.trust)).open(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                raise self.refused(error.code, error.read()) from None
        except (HTTPException, URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            text, advice = trouble_of(urlsplit(self.base).scheme, str(reason) or type(reason).__name__)
            raise CommandFailed(f"{self.base}: {text}. {advice}", NO_ANSWER) from None
        try:
            return json.loads(text)
        except ValueError:
            raise CommandFailed(
                f"{self.base}: expected a ratekeeper service, got a page that is no JSON. Correct the URL.", 2
            ) from None

    def refused(self, status: int, body: bytes) -> CommandFailed:
        """What to change after an answer that is no success."""
        if status == 401:
            got = "none" if self.token is None else "another one"
            variable = "RATEKEEPER" + self.token_option[1:].replace("-", "_").upper()
            return CommandFailed(
                f"{self.base}: expected the token of the service, got {got}. Give {self.token_option} or {variable}.", 2
            )
        try:
            detail = str(json.loads(body)["detail"])
        except (ValueError, KeyError, TypeError):
            return CommandFailed(
                f"{self.base}: expected a ratekeeper service, got the status {status}. Correct the URL.", 2
            )
        return CommandFailed(f"{self.base}: {detail}", 2)


def base_of(url: str, option: str = "URL") -> str:
    """The scheme, host and port of a URL, without a user and a password.  A host and port alone are HTTP."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        is_url = False
    if not is_url:
        raise InvalidInput(f"{option}: expected a URL such as http://127.0.0.1:8080, got {shown(url)}.")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def trouble_of(scheme: str, reason: str) -> tuple[str, str]:
    """Why a service cannot be asked, and what to do."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "its certificate is of an unknown authority", "Name the authority with --ca FILE."
    if scheme == "http" and "closed connection" in reason:
        return f"does not answer ({reason})", "If it speaks TLS, use https:// in the URL."
    if "closed connection" in reason or "ertificate required" in reason:
        return f"does not answer ({reason})", "If it asks for a certificate, give one with --cert FILE."
    return f"does not answer ({reason})", "Start it, or correct the URL."


def trust_of(ca: Path | None, cert: Path | None) -> Any:
    """What to trust and to show when a service speaks TLS."""
    import ssl

    option, path = "--ca", ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            option, path = "--cert", cert
            context.load_cert_chain(cert)
    except OSError as error:
        raise InvalidInput(
            f"{option}: expected a file in PEM, got {str(path)!r} ({error.strerror or error})."
        ) from error
    return context
