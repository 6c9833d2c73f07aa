"""The commands: what they print, and the codes they exit with."""

import json
import logging
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ratekeeper import Limiter, __version__, info
from ratekeeper.commands.app import app
from tests.servers import free_port

RULES = """
[[rules]]
name = "login"
match = "POST /login"
limit = "5/minute fixed_window"

[[rules]]
name = "again"
match = "POST /login"
limit = "500/minute fixed_window"
"""


def run(*words, stdin=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def test_check_gives_advice(rules):
    found = run("check", rules, "--json")
    assert found.exit_code == 0
    assert json.loads(found.output)["advice"] == [
        "rule 'login' guards /login with a fixed window, which lets twice its count pass at the turn of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' guards /login with a fixed window, which lets twice its count pass at the turn of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' never refuses anybody: 'login' counts the same and is stricter.",
    ]
    assert run("check", rules, "--strict").exit_code == 1


def test_check_warns_of_keys_that_are_believed_unseen(tmp_path):
    path = tmp_path / "rules.toml"
    text = 'by = "ip"\nlimit = "100/minute"\n[[rules]]\nname = "api"\nby = "user"\nlimit = "9/minute"\n'
    path.write_text('[identity]\nuser = ["header:X-Api-Key"]\n[[rules]]\nname = "ip"\n' + text)
    assert json.loads(run("check", path, "--json").output)["advice"] == [
        "rule 'api' counts by 'header:X-Api-Key' and believes every one: whoever makes up a new one for each request "
        "is held by the rules by ip only. List those you gave out in [identity.api_keys]."
    ]


def test_check_refuses_what_cannot_be_used(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[[rules]]\nname = "a"\nlimit = "0/minute"\n')
    found = run("check", path)
    assert found.exit_code == 2
    assert "bad.toml: rules[0].limit" in found.output


def test_explain_says_which_rules_apply(rules):
    found = json.loads(run("explain", rules, "POST /login", "--ip", "198.51.100.1", "--json").output)
    assert [step["applies"] for step in found["rules"]] == [True, True]
    assert run("explain", rules, "nonsense").exit_code == 2


def test_try_makes_calls(rules):
    found = run("try", "2/hour", "--calls", "3").output
    assert found.count("admitted") == 2
    assert "again in" in found
    typed = run("try", "5/hour", stdin="\n3\np\n2\nr\n2\nx\nq\n").output
    assert typed.count("admitted") == 4
    assert typed.count("refused") == 1


def test_peek_and_reset_look_into_a_store(redis_server):
    store = f"{redis_server.url}/5?deadline=10"
    place = ["--limit", "1/hour", "--name", "cli", "--store", store]
    assert run("peek", "somebody", *place).exit_code == 0
    with Limiter("1/hour", name="cli", store=store) as limiter:
        limiter.check("somebody")
    found = run("peek", "somebody", *place, "--json")
    assert (found.exit_code, json.loads(found.output)["allowed"]) == (1, False)
    assert json.loads(run("keys", "--store", store, "--json").output)["keys"] == 1
    assert run("reset", "somebody", *place).exit_code == 0
    assert run("peek", "somebody", *place).exit_code == 0
    redis_server.client(db=5).flushdb()


def test_a_store_that_does_not_answer_is_told_and_never_stood_in_for():
    place = ["--store", "redis://127.0.0.1:1/0"]
    for words in (["keys"], ["peek", "me", "--limit", "1/hour"], ["reset", "me", "--limit", "1/hour"]):
        found = run(*words, *place, "--json")
        assert found.exit_code == 3, words
        assert json.loads(found.stdout)["error"].startswith("the store does not answer: "), words


def test_shared_memory_is_looked_into_by_table(tmp_path):
    if not info()["shared_memory"]:
        pytest.skip("no shared memory here")
    store = f"shm://{tmp_path}/limits"
    with Limiter("2/hour", name="a", store=store) as first, Limiter(["5/hour", "9/day"], name="b", store=store) as both:
        for number in range(7):
            first.check(f"key {number}")
        both.check("x")
        first.check("me", 2)
    found = json.loads(run("keys", "--store", store, "--json").output)
    assert sorted([row["name"], row["limit"], row["keys"]] for row in found["tables"]) == [
        ["a", "2/hour", 8],
        ["b", "5/hour, 9/day", 1],
    ]
    assert found["keys"] == 9
    place = ["--limit", "2/hour", "--name", "a", "--store", store]
    assert run("peek", "me", *place).exit_code == 1
    assert json.loads(run("reset", "me", *place, "--json").output) == {"reset": True}
    assert run("peek", "me", *place).exit_code == 0


def test_a_segment_that_is_not_there_is_not_made():
    if not info()["shared_memory"]:
        pytest.skip("no shared memory here")
    for _ in range(2):
        assert "expected the name of a segment" in run("keys", "--store", "shm://no-such-thing").output


@pytest.mark.parametrize("words", [["keys"], ["peek", "me", "--limit", "1/hour"], ["reset", "me", "--limit", "1/hour"]])
def test_memory_of_another_process_cannot_be_looked_into(words):
    found = run(*words, "--store", "memory://")
    assert found.exit_code == 2
    assert "got memory://, which" in found.output


def test_mistakes_are_json_for_programs(tmp_path):
    (tmp_path / "bad.toml").write_text('[[rules]]\nname = "a"\nlimit = "0/minute"\n')
    found = run("check", tmp_path / "bad.toml", "--json")
    assert found.exit_code == 2
    assert json.loads(found.output)["error"].startswith("bad.toml: rules[0].limit")


def test_try_tells_programs_a_decision_a_line():
    lines = run("try", "2/hour", "--calls", "3", "--json").output.splitlines()
    assert [json.loads(line)["allowed"] for line in lines] == [True, True, False]


def test_the_version_is_told():
    assert run("--version").output == f"ratekeeper {__version__}\n"


def test_shells_complete_commands_options_and_algorithms():
    def completed(*words):
        made = {"COMP_WORDS": " ".join(["ratekeeper", *words]), "COMP_CWORD": str(len(words))}
        found = CliRunner().invoke(app, env={"_RATEKEEPER_COMPLETE": "complete_bash", **made}, prog_name="ratekeeper")
        return found.output.split()

    assert completed("se") == ["serve"]
    assert completed("serve", "--w") == ["--workers"]
    assert completed("try", "1/hour", "--algorithm", "sliding") == ["sliding_log", "sliding_window"]


def test_info_names_the_engine():
    assert json.loads(run("info", "--json").output)["engine"] in ("native", "pure")


def test_every_command_has_an_example_in_its_help():
    for name in ("serve", "check", "explain", "try", "keys", "peek", "reset"):
        found = run(name, "--help")
        assert found.exit_code == 0
        assert f"ratekeeper {name}" in found.output, name


@pytest.fixture
def own_logs():
    """``serve`` sets up the logs of its process; here that process is the test's."""
    log = logging.getLogger("ratekeeper")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


@pytest.mark.usefixtures("own_logs")
def test_serve_tells_a_mistake_and_opens_nothing(tmp_path):
    found = run("serve", tmp_path / "none.toml")
    assert found.exit_code == 2
    assert run("serve", "--http", "nonsense").exit_code == 2
    assert run("serve", "--http", "off").exit_code == 2
    found = run("serve", "--envoy-config", tmp_path / "none.yaml")
    assert (found.exit_code, "expected --grpc HOST:PORT beside --envoy-config" in one_line(found)) == (2, True)
    found = run("serve", "--http", "127.0.0.1:0", "--state", "/proc/none")
    assert (found.exit_code, "--state: expected a folder to write in, got '/proc/none'" in one_line(found)) == (2, True)


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("door", ["--http", "--resp", "--grpc"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shares", [False, True])
def test_serve_tells_of_an_address_that_is_taken(door, workers, shares):
    """Also where both share theirs with workers: two services would each count half of the calls, without a word."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run("serve", "--http", "off", door, address, "--workers", workers)
    assert found.exit_code == 2, found.output
    assert f"{door}: expected an address that" in one_line(found)
    assert address in one_line(found)


def one_line(found):
    return found.output.replace("\n", " ")


@pytest.mark.usefixtures("own_logs")
def test_serve_opens_one_door_at_each_address():
    address = f"127.0.0.1:{free_port()}"
    found = run("serve", "--http", address, "--resp", address, "--workers", 2)
    assert found.exit_code == 2
    assert f"--resp: expected an address of its own, got '{address}', that of --http." in one_line(found)


def test_the_service_says_what_to_open_and_to_type(tmp_path, capsys):
    from ratekeeper.commands.serve import greeting
    from ratekeeper.service.options import Options

    rules = tmp_path / "rules.toml"
    greeting(Options(rules=rules, resp="127.0.0.1:0"))({"http": ("0.0.0.0", 8080), "resp": ("127.0.0.1", 6380)})
    said = capsys.readouterr().err
    for words in (
        "http://127.0.0.1:8080/",
        "deny_status=429",
        "curl -si",
        f"change {rules}, then kill -HUP",
        "redis-cli",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("missing", "extra", "command"),
    [
        ("typer", "cli", ["info"]),
        ("httptools", "service", ["serve", "rules.toml", "--http", "127.0.0.1:0"]),
        ("hiredis", "redis", ["keys", "--store", "redis://localhost:1"]),
    ],
)
def test_a_package_that_is_not_installed_is_named(missing, extra, command, tmp_path):
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "a"\nlimit = "1/s"\n')
    code = f"import sys; sys.modules[{missing!r}] = None; from ratekeeper.__main__ import main; main()"
    words = [sys.executable, "-c", code, *[str(tmp_path / word) if word == "rules.toml" else word for word in command]]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"ratekeeper: expected {missing} to be installed. Run: pip install 'ratekeeper[{extra}]'\n",
    )
