"""``ratekeeper top``: the figures of a running service, live in the terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, NO_ANSWER, CommandFailed, report_errors
from ratekeeper.commands.service_client import Ca, Cert, ServiceClient, Token, Url, trust_of

if TYPE_CHECKING:
    from ratekeeper.commands.top_screen import View

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen without a cursor, and back
QUIT = ("q", "Q", "\x1b", "\x03", "\x04")


def top(
    url: Url = "http://127.0.0.1:8080",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, max=3600, help="Time between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show the figures once and exit.")] = False,
    token: Token = None,
    ca: Ca = None,
    cert: Cert = None,
    as_json: bool = AS_JSON,
) -> None:
    """Watch a running service: its rate, refusals, most refused clients, store latency and workers.

    \b
    ratekeeper top
    ratekeeper top http://limits.internal:8080
    ratekeeper top --once --json
    ratekeeper top https://limits.example.com --ca ca.pem --cert client.pem

    q or Ctrl-C ends it.  In a pipe it prints one line for each look; with --json, one line of JSON.
    Exit code 2: the token or the URL is wrong; 3: the service does not answer.
    """
    with report_errors(as_json):
        client = ServiceClient(url, token, "--token", trust_of(ca, cert))
        watch(client, interval, once, as_json)


def watch(client: ServiceClient, interval: float, once: bool, as_json: bool) -> None:
    """Look again and again.  A service that does not answer at first is an error; later it is waited for."""
    from ratekeeper.commands.top_screen import View, line, screen
    from ratekeeper.lab.text import style_for

    view = View()
    view.update(client.ask("/v1/status"))
    out = sys.stdout
    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    style = style_for(out.encoding, is_terminal and not os.environ.get("NO_COLOR"))

    def print_look(trouble: str) -> None:
        if as_json:
            typer.echo(
                json.dumps(view.as_json(), indent=2 if once else None)
                if not trouble
                else json.dumps({"error": trouble})
            )
        elif once:
            width = get_terminal_size().columns if is_terminal else 120
            typer.echo("\n".join(screen(view, client.base, width, 10_000, style)))
        else:
            typer.echo(trouble or line(view, time.strftime("%H:%M:%S")))

    def redraw(trouble: str) -> None:
        window = get_terminal_size()
        lines = screen(view, client.base, window.columns, window.lines - 1, style, trouble)
        out.write("\x1b[H" + "".join([f"{each}\x1b[K\n" for each in lines]) + "\x1b[J")
        out.flush()

    if once or as_json or not is_terminal:
        print_look("")
        if not once:
            look_again(client, view, interval, print_look, time.sleep)
        return
    with other_screen() as pause:
        redraw("")
        look_again(client, view, interval, redraw, pause)


def look_again(
    client: ServiceClient, view: View, interval: float, show: Callable[[str], None], pause: Callable[[float], object]
) -> None:
    """Look every ``interval`` seconds until ``pause`` returns True."""
    while not pause(interval):
        trouble = ""
        try:
            view.update(client.ask("/v1/status"))
        except CommandFailed as error:
            if error.code != NO_ANSWER:
                raise
            trouble = str(error)
        show(trouble)


@contextmanager
def other_screen() -> Iterator[Callable[[float], object]]:
    """Use the terminal's other screen; yields a pause that returns True when somebody types q."""
    out = sys.stdout
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin.fileno())
    except (ImportError, OSError, ValueError):  # Windows, or no keyboard: Ctrl-C ends it
        out.write(OPEN)
        try:
            yield time.sleep
        finally:
            out.write(CLOSE)
            out.flush()
        return
    except termios.error:
        before = None
    out.write(OPEN)
    try:
        if before is None:
            yield time.sleep
        else:
            tty.setcbreak(sys.stdin.fileno())
            yield typed_quit
    finally:
        if before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        out.write(CLOSE)
        out.flush()


def typed_quit(seconds: float) -> bool:
    """Wait so long; True as soon as somebody types q."""
    import select

    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")
            if not typed or typed in QUIT:
                return True
    return False
