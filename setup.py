"""Only the extensions are said here; all else is in pyproject.toml.

They are optional: without a compiler the installation succeeds, and the rules run in Python; without nghttp2 gRPC has
the server of grpcio.  They keep to the stable
ABI, so one wheel serves every version from 3.11 on; a free-threaded interpreter has no stable ABI and builds its own.
"""

import sysconfig
from glob import glob

from setuptools import Extension, setup

NATIVE = "src/ratekeeper/native"
HTTP2 = f"{NATIVE}/http2_session.c"
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")
macros = [("Py_LIMITED_API", "0x030B0000")] if stable else []

setup(
    ext_modules=[
        Extension(
            "ratekeeper.native.core",
            sources=sorted({*glob(f"{NATIVE}/*.c")} - {HTTP2}),
            depends=[*glob(f"{NATIVE}/*.h"), *glob("src/ratekeeper/algorithms/*.h")],
            define_macros=macros,
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-fvisibility=hidden", "-fno-plt", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=stable,
            optional=True,
        ),
        Extension(
            "ratekeeper.native.http2_session",
            sources=[HTTP2],
            libraries=["nghttp2"],
            define_macros=macros,
            extra_compile_args=["-O2", "-g0", "-std=gnu11", "-fvisibility=hidden"],
            py_limited_api=stable,
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
