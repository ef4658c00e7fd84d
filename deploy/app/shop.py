"""The app that the files in deploy/ run. Put your own in its place."""

from __future__ import annotations

import os

from veredus import App
from veredus.gateway.auth import jwt

app = App()
# Without an authenticator, a gateway refuses to listen beyond its own machine.
if key := os.environ.get("SHOP_JWT_KEY"):
    app.authenticate(jwt(key, audience="shop"))


@app.task(queue="mail", max_retry=5, timeout=30)
async def welcome(user_id: int) -> str:
    return f"sent to {user_id}"


@app.action("order", deadline=30)
async def order(item: str) -> dict[str, str]:
    return {"ordered": item}
