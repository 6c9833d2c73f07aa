"""URLs of Postgres stores: options, errors that teach, and passwords that never show."""

import pytest

from ratekeeper.errors import InvalidStore
from ratekeeper.stores import open_store
from ratekeeper.stores.postgres.url import PostgresSettings


def test_a_url_has_a_place_and_options():
    settings = PostgresSettings("postgresql://app:p%40ss@db:5433/shop?deadline=80ms&sslmode=require", local_share=0.25)
    assert settings.shown == "postgresql://db:5433/shop"
    assert (settings.deadline, settings.local_share, settings.schema) == (0.08, 0.25, "ratekeeper")
    assert settings.dsn == "postgresql://app:p%40ss@db:5433/shop?sslmode=require&application_name=ratekeeper"


def test_the_server_that_takes_writes_is_chosen_of_several():
    settings = PostgresSettings("postgres://a:1,b:2/shop")
    assert "target_session_attrs=read-write" in settings.dsn
    assert settings.shown == "postgresql://a:1,b:2/shop"


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("h/d?dedline=1", "expected a known option, got 'dedline'. Did you mean 'deadline'?"),
        ("h/d?deadline=soon", "expected deadline to be seconds, or milliseconds such as 50ms, got 'soon'."),
        ("h:x/d", "expected host or host:port, got another port than 1 to 65535."),
        ("h/d/e", "expected one name of a database after the host, got a '/' in it."),
        ("u:a/b@h/d", "expected '@', '/', '?' and '#' in a password to be written as %40, %2F, %3F and %23."),
        ("h/d?schema=Bad-Name", "expected a schema of lower-case letters, digits and '_', got 'Bad-Name'."),
        ("h/d?on_store_error=maybe", "expected on_store_error to be local, allow or deny, got 'maybe'."),
    ],
)
def test_a_bad_url_says_what_to_write(rest, message):
    with pytest.raises(InvalidStore) as caught:
        open_store(f"postgresql://{rest}")
    assert str(caught.value) == f"store postgresql://: {message}"


@pytest.mark.parametrize("place", ["u:hunter2@h:x/d", "u:hunter2@h/d?bad=1", "u:hun/ter2@h/d"])
def test_a_password_is_never_shown(place):
    with pytest.raises(InvalidStore) as caught:
        PostgresSettings(f"postgresql://{place}")
    assert "ter2" not in str(caught.value)


def test_a_url_that_libpq_cannot_read_is_refused_at_once():
    with pytest.raises(InvalidStore, match="expected a URL that libpq can read, got another") as caught:
        open_store("postgresql://u:hunter2%zz@h/d")
    assert "hunter2" not in str(caught.value)


def test_a_store_takes_no_prefetch_and_no_max_keys():
    store = open_store("postgresql://localhost/none")
    with pytest.raises(InvalidStore, match="expected no prefetch, as only Redis stores take quota in advance"):
        store.table("s", None, prefetch="auto")
    with pytest.raises(InvalidStore, match="expected no max_keys, as keys there expire by themselves"):
        open_store("postgresql://localhost/none", max_keys=10)
    store.close()
