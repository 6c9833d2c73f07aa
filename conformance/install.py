"""Install the peers in their released versions into build/conformance, each by its own package manager."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conformance.targets import BUILD, NODE, PEERS, PYTHON

PYTHON_PACKAGES = (
    "limits", "throttled-py[redis]", "pyrate-limiter", "aiolimiter", "slowapi", "flask-limiter", "djangorestframework",
    "django-ratelimit", "fastapi-limiter", "traffik", "token-bucket", "redis", "uvicorn", "fastapi",
)  # fmt: skip
NODE_PACKAGES = ("rate-limiter-flexible", "express", "express-rate-limit", "bottleneck", "limiter", "ioredis")


def call(*words: str | Path, folder: Path = BUILD) -> None:
    subprocess.run([str(word) for word in words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def install_python() -> None:
    call(sys.executable, "-m", "venv", PYTHON.parents[1])
    call(PYTHON, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--upgrade", *PYTHON_PACKAGES)


def install_node() -> None:
    NODE.parent.mkdir(exist_ok=True)
    (NODE.parent / "package.json").write_text('{"private": true}')
    call("npm", "install", "--silent", *NODE_PACKAGES, folder=NODE.parent)


def install_go() -> None:
    folder = copied("go")
    call("go", "mod", "tidy", folder=folder)
    call("go", "build", "-o", "peers", ".", folder=folder)


def install_rust() -> None:
    folder = copied("rust", "rust-source")
    call("cargo", "build", "--release", "--quiet", "--target-dir", BUILD / "rust", folder=folder)


def install_java() -> None:
    folder = copied("java", "java-source")
    library, classes = BUILD / "java" / "lib", BUILD / "java" / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    call("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={library}", folder=folder)
    call("javac", "-cp", f"{library}/*", "-d", classes, folder / "Peers.java")


def copied(name: str, as_name: str | None = None) -> Path:
    """The sources of a peer, in the build folder: package managers write beside them."""
    folder = BUILD / (as_name or name)
    shutil.copytree(PEERS / name, folder, dirs_exist_ok=True)
    return folder


INSTALLERS: dict[str, tuple[str, Callable[[], None]]] = {
    "python": (sys.executable, install_python),
    "node": ("npm", install_node),
    "go": ("go", install_go),
    "rust": ("cargo", install_rust),
    "java": ("mvn", install_java),
}


def install_peers(languages: list[str]) -> int:
    """Install all that can be installed; say in one line what cannot."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for language in languages or INSTALLERS:
        if language not in INSTALLERS:
            raise ValueError(f"language: expected one of {', '.join(INSTALLERS)}, got {language!r}.")
        tool, install = INSTALLERS[language]
        if not shutil.which(tool):
            print(f"{language}: skipped, there is no {tool} here")
            continue
        try:
            install()
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"{language}: skipped, {error}")
        else:
            print(f"{language}: installed")
    return 0
