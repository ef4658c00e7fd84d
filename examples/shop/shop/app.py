"""The app: which modules have tasks, defaults for all of them, and what happens when one fails."""

from shop import ledger
from veredus import App, Job, Limit, exponential

app = App(
    include=["shop.orders", "shop.payments", "shop.stock", "shop.invoices", "shop.mail", "shop.reports"],
    defaults={"max_retry": 5, "timeout": 30, "retry_delay": exponential(base=0.1, cap=60)},
)
app.max_length("mail", 100_000)  # who sends more at once gets QueueFull
app.limit("reports", Limit(concurrency=2))  # they read the whole database


@app.on_error
def failed(error: BaseException, job: Job) -> None:
    ledger.note(f"{job.type} failed: {error}")
