"""The least that a project needs, and the backend of its tasks."""

SECRET_KEY = "only an example"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
INSTALLED_APPS = ["veredus.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {
        "BACKEND": "veredus.contrib.django.VeredusBackend",
        "QUEUES": ["default", "orders"],
        "OPTIONS": {"max_retry": 5, "timeout": 60},
    }
}
