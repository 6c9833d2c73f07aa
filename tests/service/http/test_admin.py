"""Changes that need the admin token: overrides and reloads."""

from tests.service.http.conftest import RULES
from tests.service.running import running


def test_overrides_need_the_token_and_change_the_rules(service):
    request = {"request": {"path": "/shadow", "ip": "198.51.100.20"}}
    asked = {"rule": "later", "mode": "enforce"}
    assert service.post("/v1/admin/switch", asked)[0] == 401
    token = {"Authorization": "Bearer open sesame"}
    assert [service.post("/v1/check", request)[2]["allowed"] for _ in range(2)] == [True, True]
    assert service.post("/v1/admin/switch", asked, **token)[2] == {"rule": "later", "mode": "enforce"}
    assert not service.post("/v1/check", request)[2]["allowed"]
    assert service.post("/v1/admin/kill", {"killed": True}, **token)[2] == {"killed": True}
    assert service.post("/v1/check", request)[2]["allowed"]
    used = [service.post("/v1/check", {"key": "killed", "limit": "1/hour"})[2]["allowed"] for _ in range(3)]
    assert used == [True, True, True]
    assert service.post("/v1/admin/kill", {"killed": False}, **token)[2] == {"killed": False}
    assert not service.post("/v1/check", request)[2]["allowed"]
    assert service.post("/v1/admin/switch", {"rule": "later", "mode": None}, **token)[2]["mode"] == "shadow"
    assert service.post("/v1/admin/switch", {"rule": "later", "mode": "on"}, **token)[0] == 400


def test_a_reload_that_fails_keeps_the_rules(tmp_path):
    with running(tmp_path, RULES) as service:
        rules = tmp_path / "rules.toml"
        request = {"request": {"method": "POST", "path": "/submit", "ip": "198.51.100.1"}}
        service.post("/v1/check", request)
        rules.write_text("[[rules]]\nname = 1")
        service.run(service.worker.reload())
        assert service.post("/v1/check", request)[2]["allowed"]
        assert not service.post("/v1/check", request)[2]["allowed"]
        rules.write_text(RULES.replace('"2/hour"', '"9/minute"'))
        service.run(service.worker.reload())
        assert service.post("/v1/check", request)[2]["allowed"]
