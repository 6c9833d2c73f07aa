"""``ratekeeper doctor``: look at a running set-up, and say what to change.  It changes nothing."""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from ratekeeper.commands.output import AS_JSON, out, print_json, report_errors
from ratekeeper.commands.service_client import PATIENCE, Ca, Cert, base_of, trouble_of, trust_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.rules.policy import Policy

WIDEST_PROXIES = 65_536  # addresses that may be proxies before the doctor asks whether they are all meant


class Finding(NamedTuple):
    """One thing that was looked at; ``advice`` is empty if it is well."""

    subject: str
    text: str
    advice: str = ""


def doctor(
    rules: Annotated[Path | None, typer.Argument(help="The rules file.")] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", envvar="RATEKEEPER_URL", help="A running service. May be repeated."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", envvar="RATEKEEPER_STORE", help="Store URL, overrides the rules file.")
    ] = None,
    ca: Ca = None,
    cert: Cert = None,
    as_json: bool = AS_JSON,
) -> None:
    """Look at a running set-up, and say what to change: rules, store, shared memory, and services.

    \b
    ratekeeper doctor rules.toml
    ratekeeper doctor rules.toml --url http://127.0.0.1:8080
    ratekeeper doctor --url https://limits.example.com --ca ca.pem --cert client.pem

    It reads and asks, and changes nothing.  Exit code 0: all is well; 1: there is something to change.
    """
    from ratekeeper.rules.policy import Policy

    logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # what it would log is among the findings
    with report_errors(as_json):
        trust, anonymous = trust_of(ca, cert), None if cert is None else trust_of(ca, None)
        policy = Policy.load(rules, store="memory://") if rules is not None else None
        where = store or (policy.store_url if policy is not None else "memory://")
        findings = [
            *(about_rules(rules, policy) if rules is not None and policy is not None else ()),
            *about_store(where),
            *about_shared_memory(),
            *about_processes(),
            *[finding for each in url or () for finding in about_service(each, trust, anonymous)],
        ]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            style = "yellow" if finding.advice else "green"
            mark = "change" if finding.advice else "fine  "
            out.print(f"{mark}  {finding.subject}: {finding.text}", style=style, markup=False, soft_wrap=True)
            if finding.advice:
                out.print(f"        {finding.advice}", markup=False, soft_wrap=True)
    if any(finding.advice for finding in findings):
        raise typer.Exit(1)


def about_rules(path: Path, policy: Policy) -> Iterator[Finding]:
    """The rules file: its warnings, its trusted proxies, its secrets."""
    from ratekeeper.rules.files import read

    subject = path.name
    for warning in policy.warnings:
        text, _, advice = warning.partition(". ")
        yield Finding(subject, text, advice or "See ratekeeper check.")
    networks = policy.compiled.identity.addresses.trusted
    trusted = [ipaddress.ip_network(text, strict=False) for text in networks.texts if text != "unix"]
    wide = [network for network in trusted if network.num_addresses > WIDEST_PROXIES and network.version == 4]
    if wide:
        yield Finding(
            subject,
            f"trusted_proxies holds {wide[0]}, {wide[0].num_addresses:,} addresses",
            "Each of them can choose its client's address. Name the proxies alone.",
        )
    else:
        text = f"{len(networks.texts)} trusted proxies" if networks.texts else "no trusted proxy: clients are peers"
        yield Finding(subject, text)
    content = read(path)
    secrets = [name for name, found in {
        "identity.jwt.secret": content.get("identity", {}).get("jwt", {}).get("secret"),
        "secret": content.get("secret"),
        "the password in store": urlsplit(str(content.get("store", ""))).password,
    }.items() if found]  # fmt: skip
    mode = stat.S_IMODE(path.stat().st_mode)
    if secrets and mode & 0o044:
        others = "everybody" if mode & 0o004 else "its group"
        yield Finding(
            subject,
            f"holds {' and '.join(secrets)}, and {others} may read it",
            f"chmod 600 {path.name}, or move the secret into the environment.",
        )
    if mode & 0o022:
        yield Finding(subject, "others may write it", f"chmod go-w {path.name}: who writes it decides every limit.")


def about_store(url: str) -> Iterator[Finding]:
    """The store: whether it answers, forgets, is lost at a restart, or can be reached by others."""
    from ratekeeper.errors import StoreUnavailable

    scheme, _, rest = url.partition("://")
    subject = f"{scheme}://{rest.rpartition('@')[2]}".partition("?")[0]  # without a user and a password
    if url.startswith("memory:"):
        yield Finding("store", "memory://, so each process counts by itself, and anew after a restart")
        return
    if not url.startswith(("redis", "valkey")):
        return
    host = urlsplit(url.replace("+cluster", "").replace("+sentinel", "")).hostname or ""
    if not (is_loopback(host) or url.startswith(("rediss", "valkeys"))):
        yield Finding(subject, "keys and passwords cross the network unencrypted", "Use rediss:// with TLS.")
    try:
        yield from about_servers(subject, url, host)
    except StoreUnavailable as error:
        yield Finding(subject, f"does not answer: {error.why}", cure_of(error.why))


def cure_of(why: str) -> str:
    """What to do about a store that cannot be asked."""
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return "Say which authority has signed its certificate: ?tls_ca=FILE in the URL."
    if any(word in why for word in ("WRONGPASS", "NOAUTH", "invalid password")):
        return "Correct the user and the password in the URL."
    if "cluster support disabled" in why:
        return "It is no cluster: use redis:// in the URL."
    return "Start it, or correct the URL: its port, and rediss:// if and only if it speaks TLS."


def about_servers(subject: str, url: str, host: str) -> Iterator[Finding]:
    from ratekeeper.stores.inspect import InspectedServers

    names = (b"maxmemory", b"maxmemory-policy", b"appendonly", b"save", b"requirepass", b"protected-mode")
    with InspectedServers(url, PATIENCE) as servers:
        answers = servers.ask(*[(b"CONFIG", b"GET", name) for name in names], (b"ACL", b"WHOAMI"))
    for place, replies in answers:
        settings: dict[str, str] = {}
        for reply in replies[:-1]:
            if isinstance(reply, list):
                settings |= zip(
                    [text_of(each) for each in reply[::2]], [text_of(each) for each in reply[1::2]], strict=True
                )
            elif isinstance(reply, dict):
                settings |= {text_of(name): text_of(value) for name, value in reply.items()}
        if not settings:
            yield Finding(
                subject,
                f"{place} does not show its configuration",
                "Allow CONFIG GET to this user, or look yourself: maxmemory-policy, appendonly, requirepass.",
            )
            continue
        policy = settings.get("maxmemory-policy", "noeviction")
        if policy != "noeviction" and settings.get("maxmemory", "0") != "0":
            yield Finding(
                subject,
                f"{place} evicts keys ({policy}), so exhausted limits can be forgotten",
                "CONFIG SET maxmemory-policy noeviction, or give ratekeeper a server of its own.",
            )
        else:
            yield Finding(subject, f"{place} evicts no keys")
        if settings.get("appendonly") != "yes" and not settings.get("save"):
            yield Finding(
                subject,
                f"{place} keeps nothing on disk, so every limit starts anew after a restart",
                "Set appendonly yes, unless a fresh start is what you want.",
            )
        else:
            yield Finding(subject, f"{place} keeps its keys on disk")
        if not settings.get("requirepass") and text_of(replies[-1]) == "default" and not is_loopback(host):
            yield Finding(
                subject,
                f"{place} asks for no password",
                "Set requirepass or an ACL user: who reaches it can lift every limit.",
            )


def about_shared_memory() -> Iterator[Finding]:
    """Shared memory: who may read, write or replace it."""
    try:
        from ratekeeper.stores.shared import segments
    except (ImportError, OSError, ValueError):  # none on this platform
        return
    for segment in segments():
        status = os.stat(segment.path)
        mode = stat.S_IMODE(status.st_mode)
        subject = f"shm://{segment.name}"
        if mode & 0o007:
            yield Finding(subject, f"every user may open it (mode {mode:o})", f"chmod o-rwx {segment.path}")
        elif status.st_uid not in (os.getuid(), 0):
            yield Finding(
                subject,
                f"belongs to user {status.st_uid}",
                "Open only segments of users that you trust with your limits.",
            )
        elif segment.stale:
            yield Finding(subject, "is from before the last boot", "Remove it: ratekeeper.stores.shared.remove.")
        else:
            yield Finding(subject, f"mode {mode:o}, of this user" if status.st_uid == os.getuid() else f"mode {mode:o}")


def about_processes() -> Iterator[Finding]:
    """Services of this machine that this user may look at: where they listen, and what their command line shows."""
    for number in (
        sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()) if os.path.isdir("/proc") else ()
    ):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if "serve" not in words or not any("ratekeeper" in word for word in words[: words.index("serve")]):
                continue
            addresses = listening(number)
        except OSError:
            continue
        subject = f"process {number}"
        for option in ("--token", "--admin-token"):
            if any(word == option or word.startswith(option + "=") for word in words):
                variable = "RATEKEEPER" + option[1:].replace("-", "_").upper()
                yield Finding(subject, f"{option} is on its command line, for every user to read", f"Use {variable}.")
        beyond = [f"{address}:{port}" for address, port in addresses if not is_loopback(address)]
        if beyond and "--tls-cert" not in words:
            yield Finding(
                subject,
                f"listens on {', '.join(beyond)} without TLS",
                "Listen on 127.0.0.1, or give it a certificate and a token.",
            )
        elif addresses:
            yield Finding(subject, f"listens on {', '.join(f'{address}:{port}' for address, port in addresses)}")


def listening(process: int) -> list[tuple[str, int]]:
    """The addresses on which a process listens for TCP connections, as the kernel lists them."""
    folder = f"/proc/{process}/fd"
    sockets = set()
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed meanwhile, as is the folder's own
            sockets.add(os.readlink(f"{folder}/{name}"))
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                digits, _, port = words[1].partition(":")
                raw = b"".join(bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
                addresses.append((str(ipaddress.ip_address(raw)), int(port, 16)))
    return sorted(addresses)


def about_service(url: str, trust: Any = None, anonymous: Any = None) -> Iterator[Finding]:
    """A running service: whether it asks for tokens, and what anybody may read.

    ``trust`` may show a certificate; ``anonymous`` is the same without one.
    """
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    base = base_of(url, "--url")
    parts = urlsplit(base)

    def status_of(path: str, body: bytes | None = None, trust: Any = trust) -> int:
        try:
            with urlopen(Request(base + path, body), timeout=PATIENCE, context=trust) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    is_local = is_loopback(parts.hostname or "")
    try:
        status_of("/healthz")
    except (URLError, OSError) as error:
        yield Finding(base, *trouble_of(parts.scheme, str(getattr(error, "reason", error))))
        return
    if parts.scheme == "http" and not is_local:
        yield Finding(base, "tokens and keys cross the network unencrypted", "Use --tls-cert and --tls-key.")
    who = "anybody who reaches it"
    if anonymous is not None and parts.scheme == "https":
        try:
            status_of("/healthz", trust=anonymous)
        except (URLError, OSError):
            yield Finding(base, "callers need a certificate")
            who, is_local = "anybody with a certificate", True  # to others it does not answer
    if status_of("/v1/status") != 401:
        text = f"{who} may ask and use up limits"
        yield Finding(base, text, "" if is_local else "Set RATEKEEPER_TOKEN.")
    else:
        yield Finding(base, "callers need a token")
    # A change that is not valid: it is refused for its content where no token is asked for, and changes nothing.
    if status_of("/v1/admin/switch", b"{}") not in (401, 403):
        yield Finding(base, f"{who} may change limits", "Set RATEKEEPER_ADMIN_TOKEN.")
    else:
        yield Finding(base, "changes need the admin token")
    if status_of("/metrics") == 200 and not is_local:
        yield Finding(base, "anybody may read /metrics", "Let the proxy in front of it answer for /metrics.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")


def text_of(reply: Any) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
