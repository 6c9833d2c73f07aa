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
INPUT_ERROR = 2  # exit code


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


if __name__ == "__main__":
    main()
