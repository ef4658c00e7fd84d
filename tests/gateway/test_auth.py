"""Tokens become identities, or nobody comes in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from veredus.errors import ConfigError, Unauthorized
from veredus.gateway.auth import Identity, identify, jwt
from veredus.gateway.config import GatewayConfig, ListenAddress
from veredus.model.hosts import is_loopback

SECRET = "a shared secret of thirty-two bytes!"


def _token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return pyjwt.encode({"sub": "ada", "exp": time.time() + 60, **claims}, key, algorithm=algorithm)


def _pair(private: Any) -> tuple[bytes, bytes]:
    return (
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


async def test_a_valid_token_names_user_groups_limits_and_end() -> None:
    expires = int(time.time()) + 60
    token = _token(exp=expires, groups=["news"], limits={"request_rate": 5})
    identity = await identify(jwt(SECRET), token, time.time())
    assert identity == Identity(user="ada", groups=("news",), expires_at=expires, limits={"request_rate": 5})


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_public_keys(algorithm: str) -> None:
    rs = algorithm == "RS256"
    key = (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        if rs
        else ec.generate_private_key(ec.SECP256R1())
    )
    secret, public = _pair(key)
    hook = jwt(public, algorithms=[algorithm])
    assert (await identify(hook, _token(secret, algorithm), time.time())).user == "ada"
    # The public key is no secret: a token "signed" with it as one must not pass.
    with pytest.raises(Unauthorized):
        await identify(hook, _token("x" * 40), time.time())


FORGED: dict[str, Callable[[], str]] = {
    "another secret": lambda: _token("another secret of thirty-two bytes!!"),
    "expired": lambda: _token(exp=time.time() - 1),
    "no end": lambda: pyjwt.encode({"sub": "ada"}, SECRET, algorithm="HS256"),
    "no user": lambda: pyjwt.encode({"exp": time.time() + 60}, SECRET, algorithm="HS256"),
    "unsigned": lambda: pyjwt.encode({"sub": "ada", "exp": time.time() + 60}, "", algorithm="none"),
    "groups are a text": lambda: _token(groups="news"),
    "groups are numbers": lambda: _token(groups=[1]),
    "limits are a list": lambda: _token(limits=["request_rate"]),
    "unknown limit": lambda: _token(limits={"request_rte": 5}),
    "negative limit": lambda: _token(limits={"request_rate": -1}),
    "another algorithm": lambda: _token("x" * 64, algorithm="HS512"),
    "empty": lambda: "",
    "no token": lambda: "a.b.c",
    "no text of ours": lambda: "🙂",
}


@pytest.mark.parametrize("what", FORGED)
async def test_forged_expired_and_odd_tokens_are_refused(what: str) -> None:
    with pytest.raises(Unauthorized):
        await identify(jwt(SECRET), FORGED[what](), time.time())


async def test_audience_issuer_and_leeway() -> None:
    hook = jwt(SECRET, audience="shop", issuer="me", leeway=30)
    assert (await identify(hook, _token(aud="shop", iss="me", exp=time.time() - 10), time.time())).user == "ada"
    for claims in ({"aud": "other", "iss": "me"}, {"aud": "shop", "iss": "you"}, {"aud": "shop"}, {"iss": "me"}):
        with pytest.raises(Unauthorized):
            await identify(hook, _token(**claims), time.time())


async def test_hooks_may_be_async_and_whatever_they_raise_means_no() -> None:
    async def later(token: str) -> Identity:
        return Identity(user=token)

    def broken(token: str) -> Identity:
        raise KeyError(token)

    assert (await identify(later, "ada", 0.0)).user == "ada"
    with pytest.raises(Unauthorized, match="KeyError"):
        await identify(broken, "ada", 0.0)
    with pytest.raises(Unauthorized, match="Identity"):
        await identify(lambda token: "ada", "ada", 0.0)  # type: ignore[arg-type, return-value]
    for now in (100.0, 99.0):
        with pytest.raises(Unauthorized, match="expired"):
            await identify(lambda token: Identity(user="ada", expires_at=99.0), "ada", now)
    assert (await identify(lambda token: Identity(user="ada", expires_at=99.0), "ada", 98.9)).user == "ada"


@pytest.mark.parametrize(
    ("field", "value"),
    [("groups", "abc"), ("groups", None), ("expires_at", "soon"), ("expires_at", True), ("expires_at", math.nan)],
)
def test_groups_and_ends_of_an_identity_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Identity(user="ada", **{field: value})


@pytest.mark.parametrize("user", ["", "x" * 256, "\u00e9" * 128])
def test_a_user_is_a_text_of_at_most_256_bytes(user: str) -> None:
    assert Identity(user=user).user == user


@pytest.mark.parametrize("user", [None, 7, b"ada", "x" * 257, "\u00e9" * 129])
def test_any_other_user_is_refused(user: Any) -> None:
    with pytest.raises(ConfigError, match=r"user: .*at most 256 bytes"):
        Identity(user=user)


@pytest.mark.parametrize("value", [0, -1, True, "5", None])
def test_a_limit_of_a_client_is_a_number_above_0(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"request_rate: .*a number above 0"):
        Identity(user="ada", limits={"request_rate": value})
    assert Identity(user="ada", limits={"request_rate": 0.5, "request_burst": 1}).limits["request_rate"] == 0.5
    with pytest.raises(ConfigError, match="did you mean 'request_rate'"):
        Identity(user="ada", limits={"request_rat": 5})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"algorithms": ["HS256", "RS256"]}, "single family"),
        ({"algorithms": ["HS257"]}, "did you mean 'HS256'"),
        ({"algorithms": []}, "single family"),
        ({"key": "short"}, "at least 32 bytes"),
    ],
)
def test_jwt_settings_are_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        jwt(**{"key": SECRET, **given})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_s1_without_an_authenticator_it_does_not_listen_beyond_loopback() -> None:
    for name in ("ws", "quic"):
        with pytest.raises(ConfigError, match=f"{name}: got '0.0.0.0:1', expected a loopback address"):
            GatewayConfig.make(**{name: "0.0.0.0:1"})
        GatewayConfig.make(**{name: "0.0.0.0:1"}, authenticate=jwt(SECRET))
    with pytest.raises(ConfigError, match="http_token"):
        GatewayConfig.make(http=":1")
    GatewayConfig.make(http=":1", http_token="secret")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ws": "8765"}, "HOST:PORT"),
        ({"ws": "127.0.0.1:99999"}, "65535"),
        ({"ws": "off", "quic": "off"}, "WebSocket, QUIC or both"),
        ({"processes": 0}, "at least 1"),
        ({"heartbeat": 0}, "seconds above 0"),
        ({"policy": "drop"}, "did you mean 'drop_oldest'|one of reject"),
        ({"window_message": 3}, "did you mean 'window_messages'"),
        ({"certificate": "c.pem"}, "certificate and key, or neither"),
        ({"warn_share": 2}, "at most 1"),
        ({"authenticate": "yes"}, "a function"),
        ({"request_rate": float("nan")}, "per second"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        GatewayConfig.make(**given)


def test_endpoints() -> None:
    config = GatewayConfig.make(ws="[::1]:7000", quic="localhost:0", http="off", origins="https://a, https://b")
    assert config.ws == ListenAddress("::1", 7000)
    assert str(config.ws) == "[::1]:7000"
    assert config.ws.shifted(2).port == 7002
    assert config.quic is not None
    assert config.quic.shifted(2).port == 0
    assert config.http is None
    assert config.origins == ("https://a", "https://b")
