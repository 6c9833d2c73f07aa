"""ratekeeper migrate: makes a Postgres store ready, prints its statements, and says what is wrong."""

from tests.commands.command import run


def test_migrate_makes_a_store_ready(postgres_server):
    url = f"{postgres_server.url}?schema=commanded"
    result = run("migrate", url)
    assert result.exit_code == 0
    assert result.output == f"postgresql://127.0.0.1:{postgres_server.port}/postgres: ready\n"
    checked = run("peek", "user:42", "--limit", "5/minute", "--store", f"{url}&deadline=20")
    assert "5 of 5 left" in checked.output
    assert run("keys", "--store", url).output.endswith("0 keys\n")
    assert run("reset", "user:42", "--limit", "5/minute", "--store", f"{url}&deadline=20").exit_code == 0


def test_migrate_prints_the_statements_alone():
    result = run("migrate", "postgresql://h/d", "--sql", "--role", "web")
    assert result.exit_code == 0
    assert "CREATE UNLOGGED TABLE IF NOT EXISTS ratekeeper.state" in result.output
    assert 'GRANT USAGE ON SCHEMA ratekeeper TO "web";' in result.output


def test_migrate_refuses_another_store():
    result = run("migrate", "redis://localhost")
    assert result.exit_code == 2
    assert "expected postgresql://USER@HOST/DATABASE" in result.stderr


def test_migrate_says_that_a_server_is_away():
    result = run("migrate", "postgresql://u:hunter2@127.0.0.1:1/d")
    assert result.exit_code == 3
    assert "hunter2" not in result.stderr
