"""``python -m ratekeeper``: the command line.  If a package is missing, says which extra installs it."""

from __future__ import annotations

import sys

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "hiredis": "redis",
    "httptools": "service",
    "grpc": "service",
    "envoy": "service",
}
INPUT_ERROR, INTERRUPTED = 2, 130  # exit codes


def main() -> None:
    """Run the command line."""
    try:
        from ratekeeper.commands.app import app

        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        advice = f"Run: pip install 'ratekeeper[{EXTRAS[missing]}]'"
        print(f"ratekeeper: expected {missing} to be installed. {advice}", file=sys.stderr)
        sys.exit(INPUT_ERROR)
    except KeyboardInterrupt:  # while the command was loaded; later the command line itself ends so
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
