"""The web shop: FastAPI with the page, the JavaScript client from the installed package, and the Django back office."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from django.core.asgi import get_asgi_application
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from shop import ledger
from shop.app import app
from shop.orders import Order, fulfil
from shop.stock import recount
from veredus.contrib.django import serve_tasks
from veredus.contrib.fastapi import lifespan

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.office.settings")
office = get_asgi_application()
serve_tasks(app)  # workers of the app run Django's tasks too


@asynccontextmanager
async def gateway(web: FastAPI) -> AsyncIterator[None]:
    """In production: `veredus gateway shop.app:app`, behind TLS and with `app.authenticate`."""
    async with app.gateway(ws="127.0.0.1:0", quic="off", http="off") as opened:
        web.state.gateway = f"ws://{opened.ws_address}/"
        yield


# One process for everything: in production leave `worker` and `within` out, and start workers and gateways beside it.
web = FastAPI(lifespan=lifespan(app, worker=True, within=gateway))


class Basket(BaseModel):
    customer: str
    email: str
    product: str = "coffee"
    pieces: int = 1
    card: str = "4711"


@web.get("/config.json")
async def config() -> dict[str, str]:
    return {"gateway": web.state.gateway}


@web.post("/orders", status_code=202)
async def order(basket: Basket) -> dict[str, int | str]:
    """Answers at once. The customer's page follows the task: its progress arrives over the gateway."""
    number = ledger.new_order(basket.customer)
    handle = await fulfil.enqueue(Order(id=number, **basket.model_dump()))
    await app.follow(handle, user=basket.customer)
    return {"order": number, "task": handle.id}


@web.get("/orders/{number}")
async def look(number: int) -> list[str]:
    return ledger.events(number)


@web.post("/stock/{product}/recount", status_code=202)
async def count_again(product: str, reason: str) -> dict[str, bool]:
    return {"new": (await recount.enqueue(product, reason)).created}


web.mount("/office", office)
web.mount("/js", StaticFiles(packages=[("veredus", "js")]))
web.mount("/", StaticFiles(directory=Path(__file__).parents[1] / "static", html=True))
