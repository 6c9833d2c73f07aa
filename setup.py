"""Only the extension is said here; all else is in pyproject.toml.

It is optional: without a compiler the installation succeeds, and the rules run in Python.  It keeps to the stable
ABI, so one wheel serves every version from 3.11 on; a free-threaded interpreter has no stable ABI and builds its own.
"""

import sysconfig
from glob import glob

from setuptools import Extension, setup

NATIVE = "src/ratekeeper/native"
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "ratekeeper.native.core",
            sources=sorted(glob(f"{NATIVE}/*.c")),
            depends=[*glob(f"{NATIVE}/*.h"), *glob("src/ratekeeper/algorithms/*.h")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-fvisibility=hidden", "-fno-plt", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=stable,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
