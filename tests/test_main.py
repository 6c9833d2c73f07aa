"""python -m ratekeeper: a package that is not installed is named, with the extra that installs it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("missing", "extra", "command"),
    [
        ("typer", "cli", ["info"]),
        ("httptools", "service", ["serve", "rules.toml", "--http", "127.0.0.1:0"]),
        ("hiredis", "redis", ["keys", "--store", "redis://localhost:1"]),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing, extra, command, tmp_path):
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "a"\nlimit = "1/s"\n')
    code = f"import sys; sys.modules[{missing!r}] = None; from ratekeeper.__main__ import main; main()"
    words = [sys.executable, "-c", code, *[str(tmp_path / word) if word == "rules.toml" else word for word in command]]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"ratekeeper: expected {missing} to be installed. Run: pip install 'ratekeeper[{extra}]'\n",
    )
