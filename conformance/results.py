"""The result file: conditions, and one entry for each target, replaced when the target is run again."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from conformance import VERSION

RESULTS = Path(__file__).parent / "results" / "latest.json"


def conditions() -> dict[str, Any]:
    return {
        "suite": VERSION,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def merge(path: Path, results: list[dict[str, Any]], about: dict[str, Any]) -> None:
    kept = json.loads(path.read_text("utf-8"))["targets"] if path.exists() else []
    names = [each["target"] for each in results]
    targets = [each for each in kept if each["target"] not in names] + results
    path.write_text(json.dumps({"conditions": about, "targets": targets}, indent=1, ensure_ascii=False) + "\n", "utf-8")
