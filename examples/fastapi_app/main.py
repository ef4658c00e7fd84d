"""A web application that answers at once and works later: `uvicorn main:web --reload`, or `python main.py`.

curl -X POST localhost:8000/reports/7      gives the id of a task
curl localhost:8000/tasks/<id>             how it stands, and its result

One process runs the web application and a worker, for a demonstration; in production leave `worker=True` out and start
`veredus worker main:app` beside it.
"""

import asyncio
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI

from veredus import App, current
from veredus.contrib.fastapi import get_app, lifespan

app = App()


@app.task(queue="reports", max_retry=3, timeout=60, retention=3600)
async def report(order: int) -> dict[str, int]:
    for step in range(1, 4):
        await asyncio.sleep(0.1)
        await current().progress(step / 3, f"page {step}")
    return {"order": order, "pages": 3}


web = FastAPI(lifespan=lifespan(app, worker=True))


@web.post("/reports/{order}", status_code=202)
async def create(order: int) -> dict[str, str]:
    handle = await report.enqueue(order)
    return {"task": handle.id}


@web.get("/tasks/{task_id}")
async def look(task_id: str, queue: Annotated[App, Depends(get_app)]) -> dict[str, Any]:
    handle = queue.handle(task_id, queue="reports")
    status = await handle.status()
    done = status.state == "completed"
    share = status.progress.share if status.progress else 0.0
    return {"state": status.state, "progress": share, "result": await handle.result() if done else None}


if __name__ == "__main__":
    uvicorn.run(web, host="127.0.0.1", port=8000)
