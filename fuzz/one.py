"""One Python target under atheris: ``python -m fuzz.one TARGET [FILE, or libFuzzer's words]``."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
import warnings

import atheris


def main() -> None:
    target = sys.argv.pop(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["ratekeeper", "fuzz.targets"]):
        check = importlib.import_module(f"fuzz.targets.{target}").check

    def explained(data: bytes) -> None:
        try:
            check(data)
        except Exception:
            traceback.print_exc()
            raise

    atheris.Setup(sys.argv, explained)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
