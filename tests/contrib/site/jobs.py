"""An app of its own, which Django's tasks share."""

from __future__ import annotations

from veredus import App

app = App()
welcomed: list[int] = []


@app.task(name="welcome")
async def welcome(user_id: int) -> None:
    welcomed.append(user_id)
