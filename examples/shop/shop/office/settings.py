"""The least that a Django project needs. Its tasks go through the app of the shop."""

SECRET_KEY = "only an example"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.office.urls"
USE_TZ = True
INSTALLED_APPS = ["veredus.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {
        "BACKEND": "veredus.contrib.django.VeredusBackend",
        "QUEUES": ["office"],
        "OPTIONS": {"app": "shop.app:app", "max_retry": 3, "timeout": 60},
    }
}
