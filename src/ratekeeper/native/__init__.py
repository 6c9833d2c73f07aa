"""Which engine decides in this process: the C core if it was built, else the rules in Python.

``RATEKEEPER_PURE=1`` in the environment chooses Python.  Both give the same answers; C is faster.
``RATEKEEPER_CLOCK=monotonic`` lets the core read the system's clock at each decision, never the processor's counter.
"""

from __future__ import annotations

from os import environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    core: ModuleType | None = None

if environ.get("RATEKEEPER_PURE", "") not in ("", "0"):
    core, REASON = None, "RATEKEEPER_PURE is set"
else:
    try:
        import ratekeeper.native.core as built

        core, REASON = built, "the native core was built"
    except ModuleNotFoundError:
        core, REASON = None, "the native core was not built, because there was no C compiler"
    except ImportError as error:
        core, REASON = None, f"the native core could not be loaded: {error}"

ENGINE = "pure" if core is None else "native"
COUNTER, MONOTONIC = "processor counter, checked against the monotonic clock", "monotonic"


def choose_clock(wanted: str) -> tuple[str, str]:
    """The clock of tables in this process, and why; the counter is used only where it can be trusted."""
    if wanted not in ("", "counter", "monotonic"):
        from ratekeeper.errors import InvalidInput

        raise InvalidInput(f"RATEKEEPER_CLOCK: expected counter or monotonic, got {wanted!r}.")
    if core is None:
        return MONOTONIC, "the Python engine reads no other"
    reason = core.use_counter(wanted != "monotonic")
    if wanted == "monotonic":
        return MONOTONIC, "RATEKEEPER_CLOCK is monotonic"
    return (COUNTER, "the system trusts the processor's counter") if reason is None else (MONOTONIC, reason)


CLOCK, CLOCK_REASON = choose_clock(environ.get("RATEKEEPER_CLOCK", ""))


def http2_library() -> str | None:
    """The version of nghttp2, around which the service's gRPC listener is built; None: grpcio serves gRPC."""
    if environ.get("RATEKEEPER_PURE", "") not in ("", "0"):
        return None
    try:
        from ratekeeper.native.http2_session import NGHTTP2
    except ImportError:
        return None
    return f"nghttp2 {NGHTTP2}"


def info() -> dict[str, object]:
    """Describe this installation: its version, its engine and why, and the platform."""
    import platform

    from ratekeeper.version import __version__

    return {
        "version": __version__,
        "engine": ENGINE,
        "reason": REASON,
        "clock": CLOCK,
        "clock_reason": CLOCK_REASON,
        "shared_memory": ENGINE == "native" and platform.system() == "Linux",
        "lock_free": bool(core is not None and core.CAN_SWAP),
        "grpc_server": http2_library() or "grpcio",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
