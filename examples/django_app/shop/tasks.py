"""What runs in the worker."""

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task(queue_name="orders")
def confirm(order: int) -> str:
    return f"order {order} confirmed"
