"""Django: a backend for its Tasks, a management command for workers, and enqueuing on commit."""

from veredus.contrib.django.backend import VeredusBackend
from veredus.contrib.django.commit import enqueue_on_commit, enqueue_on_commit_of
from veredus.contrib.django.running import serve_tasks

__all__ = ["VeredusBackend", "enqueue_on_commit", "enqueue_on_commit_of", "serve_tasks"]
