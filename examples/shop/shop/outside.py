"""Stands for services that others run. They are sometimes down, and they refuse things."""

import asyncio

from shop import ledger


class Unavailable(ConnectionError):
    """The service is down: it may work later."""


class CardDeclined(Exception):
    """No retry changes that."""


async def charge_card(order: int, card: str, cents: int) -> str:
    await asyncio.sleep(0.02)
    if card == "declined":
        raise CardDeclined(f"the bank declines {cents} cents")
    if ledger.count(f"asked the bank for order {order}") == 0:
        ledger.note(f"asked the bank for order {order}", order)
        raise Unavailable("the bank does not answer")
    return f"receipt-{order}"


async def send_mail(address: str, subject: str, order: int | None = None) -> None:
    provider = address.rpartition("@")[2]
    ledger.note(f"mail begins {provider}")
    await asyncio.sleep(0.05)
    ledger.note(f"mail ends {provider}")
    ledger.note(f"mailed {address}: {subject}", order)
