"""RQ: the worker that does not fork for every job."""

from redis import Redis
from rq import Queue, SimpleWorker
from stamps import COUNT, PAYLOAD, URL, mode, tick


def noop(data):
    tick()


if __name__ == "__main__":
    connection = Redis.from_url(URL)
    queue = Queue("bench", connection=connection)
    if mode() == "fill":
        for _ in range(0, COUNT, 1000):
            queue.enqueue_many([Queue.prepare_data("rq_bench.noop", (PAYLOAD,), result_ttl=0) for _ in range(1000)])
    else:
        import rq_bench  # noqa: F401 - the name under which the jobs find it

        SimpleWorker([queue], connection=connection, log_job_description=False).work(burst=True, logging_level="ERROR")
