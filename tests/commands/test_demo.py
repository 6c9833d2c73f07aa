"""ratekeeper demo: the same as python -m ratekeeper.demo; what it draws is tested in tests/demo."""

from tests.commands.command import run


def test_in_a_pipe_it_shows_the_end_at_once():
    result = run("demo")
    assert result.exit_code == 0, result.output
    assert "fixed_window" in result.output
    assert result.output == run("demo", "--fast").output
