"""``python -m ratekeeper`` is ``ratekeeper``; without the packages that a command needs, it says which to install."""

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
WRONG = 2  # as for every other mistake


def main() -> None:
    """Run the command line."""
    try:
        from ratekeeper.commands.app import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        advice = f"Run: pip install 'ratekeeper[{EXTRAS[missing]}]'"
        print(f"ratekeeper: expected {missing} to be installed. {advice}", file=sys.stderr)
        sys.exit(WRONG)


if __name__ == "__main__":
    main()
