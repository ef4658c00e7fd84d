"""Loads the app of `module:app`. Errors say what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path

from veredus.app import App
from veredus.cli.logs import configure, show_server
from veredus.errors import ConfigError


def app_to_run(path: str, redis_url: str | None, log_level: str, log_format: str) -> App:
    """The app of a command that runs until it is stopped. It logs which server it uses."""
    configure(log_level, log_format)
    app = load_app(path)
    if redis_url:
        app.use(redis_url)
    show_server(app, log_format)
    return app


def load_app(path: str) -> App:
    """Import the module, searching the current folder first, and return its App."""
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError("app", path, "module:attribute, such as shop:app")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise ConfigError(
                "app", path, f"a module that can be imported from {Path.cwd()} or is installed; found no {exc.name!r}"
            ) from exc
        raise ConfigError("app", path, f"a module that imports; it fails with: {_where(exc)}") from exc
    except (Exception, SystemExit) as exc:  # the user's module may raise anything
        raise ConfigError("app", path, f"a module that imports; it fails with: {_where(exc)}") from exc
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f"; it has {', '.join(apps)}" if apps else "; it has no App at all"
            known = [f"{module_name}:{name}" for name in apps]
            raise ConfigError("app", path, f"an attribute of {module_name} that is an App{hint}", known=known)
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigError("app", path, f"an App; {attribute} is a {type(found).__name__}")
    try:
        found.load()
    except ConfigError:
        raise
    except (Exception, SystemExit) as exc:  # a module of the user's may raise anything
        raise ConfigError("include", path, f"modules that import; one fails with: {_where(exc)}") from exc
    return found


def _where(exc: BaseException) -> str:
    """The error and the line of the user's file that raised it."""
    frames = traceback.extract_tb(exc.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(exc).__name__}: {exc}{place}"
