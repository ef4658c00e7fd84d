"""Dramatiq: one process with eight threads, its default."""

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from stamps import COUNT, PAYLOAD, URL, mode, tick

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop(data):
    tick()


if __name__ == "__main__":
    if mode() == "fill":
        for _ in range(COUNT):
            noop.send(PAYLOAD)
    else:
        worker = dramatiq.Worker(broker, worker_threads=8)
        worker.start()
        time.sleep(3600)
