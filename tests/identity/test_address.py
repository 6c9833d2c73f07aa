"""Whose address it is: a table of forms, and the right-most untrusted against a model."""

import random
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Request
from ratekeeper.identity.address import Addresses, Networks, parse_address
from tests import tier

PROXY = "10.0.0.1"


def counted(peer, *lines, header="X-Forwarded-For", trusted=("10.0.0.0/8", "unix"), **more):
    addresses = Addresses(trusted, header, **more)
    return addresses.find(Request(peer=peer, headers=[(header, line) for line in lines])).subject


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["6.6.6.6"], "203.0.113.9"),  # not a proxy: its header is hearsay
        (PROXY, [], PROXY),  # a proxy that says nothing is counted itself
        (PROXY, ["203.0.113.9"], "203.0.113.9"),
        (PROXY, ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        (PROXY, ["203.0.113.9, 10.1.1.1"], "203.0.113.9"),
        (PROXY, ["6.6.6.6", "203.0.113.9", "10.1.1.1"], "203.0.113.9"),  # several lines are one list
        (PROXY, ["10.9.9.9, 10.1.1.1"], "10.9.9.9"),  # all trusted: the left-most
        (PROXY, ["6.6.6.6, unknown"], PROXY),
        (PROXY, ["6.6.6.6, garbage, 10.1.1.1"], "10.1.1.1"),
        (PROXY, ["203.0.113.9,"], PROXY),
        (PROXY, ["203.0.113.9:4711"], "203.0.113.9"),
        (PROXY, ["[2001:db8::1]:443"], "2001:db8::/64"),
        (PROXY, ["[2001:db8::1"], PROXY),
        (PROXY, ["2001:db8::1"], "2001:db8::/64"),
        (PROXY, ["fe80::1%eth0"], "fe80::/64"),
        (PROXY, ['"203.0.113.9"'], "203.0.113.9"),
        (PROXY, ["010.0.0.1"], PROXY),  # leading zeros are read differently by different people
        (PROXY, ["x" * 100_000], PROXY),
        (PROXY, ["٣.1.1.1"], PROXY),
        (None, ["203.0.113.9"], "203.0.113.9"),  # a UNIX socket, trusted by name
        (None, [], "unix"),
        ("/run/app.sock", [], "unix"),
        ("testclient", ["6.6.6.6"], "unknown"),
    ],
)
def test_forwarded_for(peer, lines, expected):
    assert counted(peer, *[line.encode("utf-8").decode("latin-1") for line in lines]) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["for=192.0.2.60;proto=https;by=203.0.113.43"], "192.0.2.60"),
        (['For="[2001:db8:17::9]:4711"'], "2001:db8:17::/64"),
        (["for=6.6.6.6, for=192.0.2.60"], "192.0.2.60"),
        (["for=192.0.2.60, for=10.1.1.1"], "192.0.2.60"),
        (["for=6.6.6.6", "for=192.0.2.60"], "192.0.2.60"),
        (["for=_hidden"], PROXY),
        (["for=unknown"], PROXY),
        (["proto=https"], PROXY),
        (['host="x, for=6.6.6.6";for=192.0.2.60'], "192.0.2.60"),  # a comma in quotes parts nothing
        (['for=192.0.2.60;host="a;for=6.6.6.6"'], "192.0.2.60"),
        (['for="6.6.6.6', "for=192.0.2.60"], "192.0.2.60"),  # an open quote ends with its line
        (['for="192.0.2.\\60"'], "192.0.2.60"),
    ],
)
def test_forwarded(lines, expected):
    assert counted(PROXY, *lines, header="Forwarded") == expected


def test_only_the_configured_family_is_read():
    addresses = Addresses(["10.0.0.0/8"], "X-Forwarded-For")
    names = ["Forwarded", "X-Real-IP", "X_Forwarded_For", "X.Forwarded.For", "CF-Connecting-IP", "True-Client-IP"]
    request = Request(
        peer=PROXY, headers=[(name, "for=6.6.6.6" if name == "Forwarded" else "6.6.6.6") for name in names]
    )
    assert addresses.find(request).subject == PROXY


def test_a_header_with_one_address():
    assert counted(PROXY, "203.0.113.9", header="X-Real-IP") == "203.0.113.9"
    assert counted(PROXY, "6.6.6.6, 203.0.113.9", header="X-Real-IP") == PROXY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::FFFF:0102:0304", "1.2.3.4"),
        ("64:ff9b::1.2.3.4", "1.2.3.4"),
        ("2002:102:304::1", "1.2.3.4"),
        ("2001:0:4136:e378:8000:63bf:fefd:fcfb", "1.2.3.4"),  # Teredo keeps its client inverted
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ],
)
def test_one_host_has_one_name(text, expected):
    assert Addresses().find(Request(peer=text)).subject == expected


def test_prefixes_are_configurable():
    assert counted("2001:db8:1:2ff::1", ipv6_prefix=56) == "2001:db8:1:200::/56"
    assert counted("2001:db8::1", ipv6_prefix=128) == "2001:db8::1/128"
    assert counted("192.0.2.99", ipv4_prefix=24) == "192.0.2.0/24"


def test_an_address_that_only_embeds_an_inner_one_is_not_inside():
    inner = Networks(["10.0.0.0/8"])
    assert parse_address("::ffff:10.0.0.1") in inner
    assert parse_address("2002:a00:1::1") not in inner
    assert parse_address("64:ff9b::10.0.0.1") not in inner
    assert None not in inner


octet = st.sampled_from(["10.0.0.1", "10.2.3.4", "192.0.2.1", "198.51.100.2", "rubbish", "", "2001:db8::5"])


@given(st.sampled_from(["10.0.0.9", "192.0.2.9"]), st.lists(octet, max_size=6))
def test_the_right_most_untrusted_is_found(peer, chain):
    expected = peer
    for element in reversed(chain):
        if not expected.startswith("10."):
            break
        if element in ("rubbish", ""):
            break
        expected = element
    lines = [", ".join(chain)] if chain else []
    assert counted(peer, *lines) == ("2001:db8::/64" if ":" in expected else expected)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("ratekeeper.identity.address.MOST_CACHED", 10)
    addresses = Addresses()
    for number in range(1000):
        assert addresses.find(Request(peer=f"192.0.{number // 256}.{number % 256}")).subject.startswith("192.0.")
        assert len(addresses._cache) <= 10


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_of_ten_thousand_elements_only_the_last_are_read(header):
    """Attack 1: a long header costs no more than a short one."""
    prefix = "for=" if header == "Forwarded" else ""
    trusting = Addresses(["10.0.0.0/8"], header=header)
    chain = [f"{prefix}10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(10_000)]
    client = trusting.find(Request(peer="10.0.0.1", headers=[(header, ", ".join(chain))]))
    assert client.trusted  # the last address that was read: a limit still applies, and not another client's
    assert len(trusting._cache) <= 33
    spoofed = [*chain, prefix + "198.51.100.7", prefix + "10.9.9.9"]
    assert trusting.find(Request(peer="10.0.0.1", headers=[(header, ", ".join(spoofed))])).subject == "198.51.100.7"
    lines = [(header, element) for element in spoofed]
    assert trusting.find(Request(peer="10.0.0.1", headers=lines)).subject == "198.51.100.7"


def test_a_quote_that_a_client_opened_far_to_the_left_hides_only_himself():
    trusting = Addresses(["10.0.0.0/8"], header="Forwarded")
    for opened in ('for="' + "x" * 9_000, '"' * 9_001, "\\" * 5_000 + '"', 'for="' + "y" * 4_070):
        line = f"{opened}, for=198.51.100.7"
        client = trusting.find(Request(peer="10.0.0.1", headers=[("Forwarded", line)]))
        assert client.subject in ("198.51.100.7", "10.0.0.1")


def test_most_addresses_are_parsed_the_quick_way_and_alike():
    """Every form, each of them random: the quick way is taken or not, and never says anything else."""
    chance = random.Random(5)
    quick = 0
    settings = [{}, {"trusted": ["10.0.0.0/8", "2a00::/12"]}, {"ipv6_prefix": 56}, {"ipv4_prefix": 24}]
    for turn in range(tier.steps(40_000)):
        addresses = Addresses(**settings[turn % 4])
        number = chance.getrandbits(128)
        if chance.random() < 0.7:
            head = chance.choice([0x2001, 0x2001_0000 >> 16, 0x2002, 0x2003, 0x2A00, 0x3FFF, 0x64, 0, 0xFE80])
            number = head << 112 | chance.getrandbits(112) & chance.getrandbits(112) & chance.getrandbits(112)
        if chance.random() < 0.1:
            number = 0x2001 << 112 | chance.getrandbits(90)  # Teredo among them
        six = IPv6Address(number)
        four = IPv4Address(chance.getrandbits(32))
        forms = [str(six), six.exploded, str(six).upper(), f"::ffff:{four}", f"{six}%eth0", str(four), f"0{four}"]
        text = chance.choice([*forms, f"{four}.1", f"{four} ", "1.2.3", "1", "::", "x", "é"])
        found, expected = addresses._parse_plain(text), addresses._parse_any(text)
        if found is not None:
            quick += 1
            assert (found.subject, found.address, found.trusted) == (
                expected.subject,
                expected.address,
                expected.trusted,
            ), text
    assert quick > tier.steps(40_000) / 20
