"""URLs of every usual spelling, errors that name what is allowed, and passwords that never show."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from veredus.errors import ConfigError
from veredus.store.connection.address import Address, parse_url

SECRET = "s3cr3t"

TABLE: list[tuple[str, dict[str, Any]]] = [
    ("redis://", {"kind": "tcp", "hosts": (("localhost", 6379),)}),
    ("redis://h", {"kind": "tcp", "hosts": (("h", 6379),), "db": 0}),
    ("redis://h:7000/3", {"hosts": (("h", 7000),), "db": 3}),
    ("redis://h?db=4", {"db": 4}),
    ("redis://h/3?db=4", {"db": 4}),
    ("redis://:7000", {"hosts": (("localhost", 7000),)}),
    ("redis://[::1]:7000/1", {"hosts": (("::1", 7000),), "db": 1}),
    ("redis://[::1]", {"hosts": (("::1", 6379),)}),
    (f"redis://:{SECRET}@h", {"username": "", "password": SECRET}),
    (f"redis://me:{SECRET}@h", {"username": "me", "password": SECRET}),
    ("redis://me:p%40ss%2Fw%23@h", {"password": "p@ss/w#"}),
    ("redis://me:p@ss@h", {"password": "p@ss", "hosts": (("h", 6379),)}),
    ("redis://m%40e:x@h", {"username": "m@e"}),
    (f"redis://h?username=me&password={SECRET}", {"username": "me", "password": SECRET}),
    ("valkey://h", {"kind": "tcp", "tls": None}),
    ("unix:///tmp/x.sock", {"kind": "unix", "path": "/tmp/x.sock", "db": 0}),
    ("unix:///tmp/x.sock?db=2", {"path": "/tmp/x.sock", "db": 2}),
    ("unix:///tmp/a%20b@c.sock", {"path": "/tmp/a b@c.sock"}),
    (f"unix://me:{SECRET}@/tmp/x.sock", {"path": "/tmp/x.sock", "username": "me", "password": SECRET}),
    (
        f"redis-socket://:{SECRET}@/tmp/x.sock?db=5",
        {"kind": "unix", "path": "/tmp/x.sock", "db": 5, "password": SECRET},
    ),
    ("redis+socket:///tmp/x.sock", {"kind": "unix", "path": "/tmp/x.sock"}),
    ("redis+sentinel://a,b:1,c/main/2", {"kind": "sentinel", "master": "main", "db": 2}),
    ("redis+sentinel://a,b:1/main", {"hosts": (("a", 26379), ("b", 1)), "db": 0, "sentinel_tls": None}),
    ("rediss+sentinel://a/main?sentinel_tls=no", {"sentinel_tls": None}),
    (
        f"redis+sentinel://me:{SECRET}@a/main?sentinel_username=sen&sentinel_password=tinel",
        {"username": "me", "password": SECRET, "sentinel_username": "sen", "sentinel_password": "tinel"},
    ),
    (
        f"redis-sentinel://:{SECRET}@a:1,b:2/3?master=main",
        {
            "kind": "sentinel",
            "hosts": (("a", 1), ("b", 2)),
            "master": "main",
            "db": 3,
            "sentinel_password": SECRET,
            "password": "",
        },
    ),
    (
        f"redis-sentinel://:x@a?master=main&password={SECRET}",
        {"sentinel_password": "x", "password": SECRET},
    ),
    ("redis+cluster://a,b:7001", {"kind": "cluster", "hosts": (("a", 6379), ("b", 7001))}),
    ("redis-cluster://a/0", {"kind": "cluster", "db": 0}),
]


@pytest.mark.parametrize(("url", "expected"), TABLE, ids=[url for url, _ in TABLE])
def test_spellings(url: str, expected: dict[str, Any]) -> None:
    address = parse_url(url)
    assert {name: getattr(address, name) for name in expected} == expected


@pytest.mark.parametrize("url", ["rediss://h", "valkeys://h", "rediss+sentinel://h/main", "rediss+cluster://h"])
def test_tls(url: str) -> None:
    context = parse_url(url).tls
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_sentinels_speak_tls_like_their_master_and_the_description_says_so() -> None:
    address = parse_url("rediss+sentinel://h/main")
    assert address.sentinel_tls is address.tls is not None
    assert address.describe() == "rediss+sentinel://h:26379/main/0"
    assert parse_url("rediss+cluster://h").describe() == "rediss+cluster://h:6379"


def test_tls_checks_can_be_turned_off_by_name() -> None:
    context = parse_url("rediss://h?ssl_cert_reqs=none").tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
    context = parse_url("rediss://h?ssl_check_hostname=false").tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "redis://host:6379/0"),
        ("localhost:6379", "redis://host:6379/0"),
        ("http://h", "redis://host:6379/0"),
        ("redis://h:x", "a port from 1 to 65535"),
        ("redis://h:0", "a port from 1 to 65535"),
        ("redis://h:70000", "a port from 1 to 65535"),
        ("redis://h/x", "a database number"),
        ("redis://h?db=-1", "a database number"),
        ("redis://h?databse=1", "db"),
        ("redis://h?pasword=1", "did you mean 'password'?"),
        ("redis+sentinel://h", "<master>"),
        ("redis-sentinel://h", "<master>"),
        ("redis+cluster://h/1", "a cluster has only database 0"),
        ("rediss://h?ssl_ca_certs=/nowhere.pem", "readable certificate files"),
        ("redis://[::1", "redis://host:6379/0"),
        ("unix://", "unix:///path/to.sock"),
        ("rediss+sentinel://h/main?sentinel_tls=maybe", "yes or no"),
        ("rediss://h?ssl_check_hostname=perhaps", "yes or no"),
    ],
)
def test_errors_name_what_is_allowed(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert caught.value.field == "redis url"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://me:{SECRET}@h:1/2",
        f"rediss://:{SECRET}@h",
        f"redis://h?password={SECRET}",
        f"unix://:{SECRET}@/tmp/x.sock?db=1",
        f"redis+sentinel://:{SECRET}@a,b/main",
        f"redis-sentinel://:{SECRET}@a,b?master=main",
        f"redis+sentinel://a/main?sentinel_password={SECRET}",
        f"redis+cluster://:{SECRET}@a",
    ],
)
def test_a_password_shows_neither_in_the_repr_nor_in_the_description(url: str) -> None:
    address = parse_url(url)
    assert SECRET in (address.password, address.sentinel_password)
    assert SECRET not in repr(address)
    assert SECRET not in address.describe()


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{SECRET}@h",
        f"http://h?password={SECRET}",
        f"http://h?sentinel_password={SECRET}&db=1",
        f"redis://:{SECRET}@h:x",
        f"redis://:{SECRET}@h/x",
        f"redis://:{SECRET}@h?nonsense=1",
        f"redis://:{SECRET}/more@h:1",
        f"redis://me:{SECRET}#more@h:1",
        f"redis://:more#{SECRET}@h:1",
        f"redis://:{SECRET}?more@h:1",
        f"redis://:more?{SECRET}@h:1",
        f"redis://:more/{SECRET}@h:1",
        f"redis+sentinel://:{SECRET}@h",
        f"redis+cluster://:{SECRET}@h/1",
        f"redis://:{SECRET}@[::1",
        f":{SECRET}@h",
        f"me:{SECRET}@h:6379",
    ],
)
def test_a_password_never_shows_in_an_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_descriptions() -> None:
    assert parse_url("redis://h/1").describe() == "redis://h:6379/1"
    assert parse_url("rediss://h").describe() == "rediss://h:6379/0"
    assert parse_url("unix:///s?db=2").describe() == "unix:///s?db=2"
    assert parse_url("redis+sentinel://a,b/m/1").describe() == "redis+sentinel://a:26379,b:26379/m/1"
    assert parse_url("redis+cluster://a,b:1").describe() == "redis+cluster://a:6379,b:1"


def test_an_address_is_a_value() -> None:
    assert parse_url("redis://h/1") == Address(kind="tcp", hosts=(("h", 6379),), db=1)
