"""Messages to systemd, through a real socket of datagrams."""

import socket

import pytest

from ratekeeper.service.systemd import notify, notify_reloading, watchdog


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_arrive_as_one_datagram(tmp_path, monkeypatch, abstract):
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        assert notify("READY=1", "STATUS=serving")
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"
        assert notify_reloading()
        assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


def test_without_systemd_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not notify("READY=1")


@pytest.mark.parametrize(("text", "seconds"), [("30000000", 30.0), ("0", None), ("", None), ("soon", None)])
def test_the_watchdog_says_how_often(monkeypatch, text, seconds):
    monkeypatch.setenv("WATCHDOG_USEC", text)
    assert watchdog() == seconds
