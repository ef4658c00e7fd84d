"""Documents are rendered in processes: they use a core, and a crash in them harms no other task."""

import os

from veredus import Router

router = Router(queue="invoices", run_in="process", timeout=60)


def _document(title: str, *lines: str) -> str:
    return "\n".join([title, *lines, f"rendered by process {os.getpid()}"])


@router.task(name="invoices.render")
def render(order: int, customer: str, cents: int) -> str:
    return _document(f"Invoice {order}", customer, f"{cents / 100:.2f} EUR")


@router.task(name="invoices.credit_note")
def credit_note(order: int, cents: int) -> str:
    return _document(f"Credit note {order}", f"{-cents / 100:.2f} EUR")


@router.task(name="invoices.delivery_note")
def delivery_note(order: int, product: str, pieces: int) -> str:
    return _document(f"Delivery note {order}", f"{pieces} x {product}")


@router.task(name="invoices.label")
def label(order: int, address: str) -> str:
    return _document(f"Label {order}", address)


@router.task(name="invoices.dunning")
def dunning_letter(order: int, days: int) -> str:
    return _document(f"Reminder {order}", f"{days} days late")
