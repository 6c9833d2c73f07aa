"""The table without Python: random acts and threads, in programs built with sanitizers."""

import pytest

from tests.native.build import compiled, run

MEMORY = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
THREADS = ["-O1", "-fsanitize=thread"]


def test_random_acts_break_no_rule_of_the_language(tmp_path):
    done = run(compiled("fuzz", tmp_path, *MEMORY), 2024, 300)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_threads_that_hold_the_regions_lock_get_exactly_the_limit(tmp_path):
    done = run(compiled("threads", tmp_path, *THREADS))
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_a_flood_ten_times_the_table_resets_nobody_at_the_limit(tmp_path):
    done = run(compiled("flood", tmp_path, "-O2"))
    assert (done.stdout, done.returncode) == ("reset: 0\n", 0)
