"""The back office: a Django project that shares the app."""
