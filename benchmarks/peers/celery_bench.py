"""Celery: late acknowledgement, no results, the pool without processes in between."""

from celery import Celery
from stamps import COUNT, PAYLOAD, URL, mode, tick

app = Celery("celery_bench", broker=URL)
app.conf.update(
    task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=100, worker_send_task_events=False
)


@app.task(name="noop")
def noop(data):
    tick()


if __name__ == "__main__":
    if mode() == "fill":
        with app.producer_pool.acquire() as producer:
            for _ in range(COUNT):
                noop.apply_async((PAYLOAD,), producer=producer)
    else:
        app.worker_main(
            ["worker", "-P", "solo", "-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        )
