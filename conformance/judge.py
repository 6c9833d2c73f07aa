"""Judge one target by all laws, or by those that are named: the result is a dict, as the result file keeps it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from typing import Any

from conformance.laws import LAWS, Entry
from conformance.redis_server import RedisServer
from conformance.run import Broken, NotJudged, Run
from conformance.session import TargetFailed
from conformance.targets import Target

LEVELS = ("core", "distributed", "http", "failure")
PASSED, FAILED, NOT_PROMISED, NOT_JUDGED = "pass", "fail", "not promised", "not judged"


def judge_law(entry: Entry, run: Run) -> dict[str, Any]:
    """One cell of the matrix."""
    missing = entry.needs - run.promises.features
    if missing:
        return {"status": NOT_PROMISED, "says": f"not promised: {', '.join(sorted(missing))}"}
    began = time.monotonic()
    try:
        cell: dict[str, Any] = {"status": PASSED, "says": entry.judge(run)}
    except Broken as broken:
        cell = {"status": FAILED, "says": str(broken), "history": broken.history}
    except NotJudged as reason:
        cell = {"status": NOT_JUDGED, "says": str(reason)}
    except TargetFailed as error:
        cell = {"status": FAILED, "says": f"the target ended or raised: {error}"[:600], "history": []}
    cell["seconds"] = round(time.monotonic() - began, 1)
    return cell


def judge(target: Target, laws: Iterable[str] | None = None, *, is_quick: bool = False) -> dict[str, Any]:
    """Run a target.  ``missing`` says why it could not be run here, if so."""
    wanted = list(LAWS if laws is None else laws)
    result: dict[str, Any] = {"target": target.name, "language": target.language, "family": target.family, "laws": {}}
    if reason := target.missing():
        return result | {"missing": reason}
    server = None
    over_admission: dict[str, float] = {}
    try:
        server = RedisServer() if target.uses_redis else None
        for real in (False, True):
            chosen = [LAWS[name] for name in wanted if is_of_real_time(LAWS[name], target) == real]
            if not chosen:
                continue
            make = target.start_real if real and target.start_real else target.start
            run = Run(make, server, is_quick=is_quick)
            try:
                session = run.session
                result |= {"name": session.name, "version": session.version}
                if not real or "promises" not in result:
                    result["promises"] = run.promises.to_json()
                for entry in chosen:
                    if session_ended(run):  # by the law before
                        run.close()
                        run = Run(make, server, is_quick=is_quick)
                    result["laws"][entry.name] = judge_law(entry, run)
                    for name, ratio in run.over_admission.items():
                        over_admission[name] = max(over_admission.get(name, 0.0), ratio)
            finally:
                run.close()
    except (TargetFailed, OSError) as error:
        return result | {"missing": f"does not start: {error}"[:400]}
    except Exception:
        return result | {"missing": f"the suite failed: {traceback.format_exc(limit=-4)}"}
    finally:
        if server:
            server.close()
    result["laws"] = {name: result["laws"][name] for name in wanted if name in result["laws"]}
    result["over_admission"] = {name: round(ratio, 3) for name, ratio in over_admission.items()}
    result["levels"] = levels_of(result["laws"])
    return result


def is_of_real_time(entry: Entry, target: Target) -> bool:
    """Outages last, and keys of a store expire, in real time, whatever clock decides."""
    return entry.level == "failure" or (entry.name == "expiry" and target.start_real is not None)


def session_ended(run: Run) -> bool:
    process = getattr(run.session, "process", None)
    return process is not None and process.poll() is not None


def levels_of(cells: dict[str, dict[str, Any]]) -> dict[str, str]:
    """A level is passed if no law of it failed and at least one passed."""
    found = {}
    for level in LEVELS:
        states = {cell["status"] for name, cell in cells.items() if LAWS[name].level == level}
        found[level] = FAILED if FAILED in states else PASSED if PASSED in states else NOT_PROMISED
    return found
