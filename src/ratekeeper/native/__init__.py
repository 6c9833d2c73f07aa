"""Which engine decides in this process: the C core if it was built, else the rules in Python.

``RATEKEEPER_PURE=1`` in the environment chooses Python.  Both give the same answers; C is faster.
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
        "shared_memory": ENGINE == "native" and platform.system() == "Linux",
        "lock_free": bool(core is not None and core.CAN_SWAP),
        "grpc_server": http2_library() or "grpcio",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
