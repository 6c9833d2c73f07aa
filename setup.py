"""Only the extension is said here; all else is in pyproject.toml.

It is optional: without a compiler the installation succeeds, and the rules run in Python.
"""

from glob import glob

from setuptools import Extension, setup

NATIVE = "src/ratekeeper/native"

setup(
    ext_modules=[
        Extension(
            "ratekeeper.native.core",
            sources=[f"{NATIVE}/{name}.c" for name in ("core", "decision", "store", "tables", "terms")],
            depends=[*glob(f"{NATIVE}/*.h"), *glob("src/ratekeeper/algorithms/*.h")],
            extra_compile_args=["-O3", "-std=gnu11", "-fno-semantic-interposition"],
            optional=True,
        )
    ],
)
