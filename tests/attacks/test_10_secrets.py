"""No password, token or secret in a message, an attribute of an error, a log line or a repr, however mistyped."""

import re
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import InvalidInput, Limiter, Policy
from ratekeeper.rules.files import read_text
from ratekeeper.service.options import Options
from ratekeeper.stores import open_store
from tests import tier
from tests.service.running import running

SECRET = "hunter2XYZ"
FORMS = [
    f"redis:/user:{SECRET}@host", f"redis//user:{SECRET}@host", f"reddis://:{SECRET}@host", f"user:{SECRET}@host:6379",
    f":{SECRET}@host", f"redis://user:{SECRET}", f"redis:// :{SECRET}@host:6379x", f" redis://:{SECRET}@host:port/0",
    f"redis://:%{SECRET}@host:99999", f"redis://:{SECRET}@[::1", f"redis:///u:{SECRET}@host", f"redis://:{SECRET}/x@host",
    f"redis://:{SECRET}#x@host", f"redis://:x?{SECRET}@host", f"redis://h?password={SECRET}", f"redis:user:{SECRET}@h",
    f"redis://:{SECRET}@h/zero", f"redis://:{SECRET}@h,i", f"redis://:{SECRET}@h?deadline=soon", f"memory://:{SECRET}@h",
    f"redis://h?db={SECRET}&secret={SECRET}", f"shm://u:{SECRET}@h", f"redis+sentinel://:{SECRET}@h", f"http://u:{SECRET}@h",
    f"redis+cluster://:{SECRET}@h/3", f"rediss://u:{SECRET}@h:0", f"REDIS://u:{SECRET}@h", f"redis;//u:{SECRET}@h",
    f"unix://u:{SECRET}@", f"redis+sentinel://u:1234/{SECRET}@h/s", f"redis://u:1/{SECRET}@h", f"{SECRET}@host:6379",
]  # fmt: skip


def told(error):
    """Everything that an error tells: its text, its attributes, and the errors behind it."""
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts += [str(error), repr(error), repr(error.__dict__), repr(getattr(error, "doc", ""))]
        error = error.__cause__ or error.__context__
    return " ".join(texts)


def opened(url):
    """What the error says if the URL is refused; what the store shows if it is not."""
    try:
        store = open_store(url)
    except InvalidInput as error:
        return told(error) + "".join(traceback.format_exception(error, limit=0))
    shown = repr(store) + repr(getattr(getattr(store, "settings", None), "shown", ""))
    store.close()
    return shown


@pytest.mark.parametrize("url", FORMS)
def test_10_a_mistyped_url_does_not_show_its_password(url):
    assert SECRET not in opened(url)


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%/?#@:[]!$&,;= -_"


@settings(max_examples=tier.examples(1500))
@given(
    st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "reddis", "memory", "shm", "a", ""]),
    st.sampled_from(["://", ":/", "//", ":", "", ":///", "; //", " ://"]),
    st.sampled_from(["", "user", "us er", "%75ser"]),
    st.text(LETTERS, max_size=4), st.text(LETTERS, max_size=4),
    st.sampled_from(["@", "@@", "%40", "@ "]),
    st.sampled_from(["", "host", "host:6379", "[::1", "host:port", "h1,h2", "host:99999"]),
    st.sampled_from(["", "/0", "/zero", "/0?deadline=x", "?db=one", "?secret=" + SECRET, "/svc/1"]),
)  # fmt: skip
def test_10_no_mistyped_url_shows_its_password(scheme, separator, user, before, after, at, host, rest):
    assert SECRET not in opened(f"{scheme}{separator}{user}:{before}{SECRET}{after}{at}{host}{rest}")


@pytest.mark.parametrize("url", [*FORMS, [f"redis://:{SECRET}@h"], {"url": SECRET}])
def test_10_rules_files_and_reloads_do_not_show_it_either(url, caplog):
    rules = {"store": url, "rules": [{"name": "a", "limit": "1/minute"}]}
    try:
        shown = repr(Policy.parse(rules))
    except InvalidInput as error:
        shown = told(error)
    assert SECRET not in shown
    assert SECRET not in caplog.text


def test_10_a_reload_that_fails_logs_no_secret(tmp_path, caplog):
    good = '[[rules]]\nname = "a"\nlimit = "1/minute"\n'
    with running(tmp_path, good) as service:
        for line in (f'store = "redis:/u:{SECRET}@h"', f'store = ["{SECRET}"]', f'secret = {{a = "{SECRET}"}}',
                     f'identity = {{jwt = {{secret = ["{SECRET}"]}}}}', f'identity.jwt.jwks_url = "http://u:{SECRET}@h/"',
                     f'store = "{SECRET}', f'store = "redis://:{SECRET}@h/zero"'):  # fmt: skip
            caplog.clear()
            (tmp_path / "rules.toml").write_text(f"{line}\n{good}")
            service.run(service.worker.reload())
            assert "rules not reloaded, the present rules stay: " in caplog.text
            assert SECRET not in caplog.text


@pytest.mark.parametrize("suffix", [".yaml", ".toml", ".json"])
def test_10_a_file_that_cannot_be_parsed_is_not_quoted(suffix):
    texts = [f"store: 'redis://:{SECRET}@h\nrules: [", f'store = "{SECRET}', f'{{"a": "{SECRET}" x}}']
    texts.append(f"a: {SECRET}: b")
    for text in texts:
        with pytest.raises(InvalidInput) as caught:
            read_text(text, suffix, "rules" + suffix)
        assert SECRET not in told(caught.value)


def test_10_reprs_hold_no_secret():
    options = Options(token=SECRET, admin_token=SECRET, store=f"redis://:{SECRET}@h")
    jwt = {"secret": SECRET * 4}
    policy = Policy.parse({"secret": SECRET, "identity": {"user": "jwt:sub", "jwt": jwt},
                           "rules": [{"name": "a", "by": "user", "limit": "1/minute"}]})  # fmt: skip
    limiter = Limiter("1/minute", store=f"redis://user:{SECRET}@127.0.0.1:1/0?secret={SECRET}")
    things = [options, policy, policy.compiled.settings, policy.compiled, policy.rules, limiter, limiter.store,
              limiter.store.settings, vars(policy.compiled.settings.identity)]  # fmt: skip
    assert SECRET not in re.sub(r"\s+", " ", repr(things))
    limiter.close()


def test_10_an_unreachable_store_is_named_without_its_password(caplog):
    limiter = Limiter("1/minute", store=f"redis://user:{SECRET}@127.0.0.1:1/0")
    limiter.check("k")
    limiter.close()
    assert SECRET not in caplog.text
