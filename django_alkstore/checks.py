"""System checks: what ``manage.py check`` can tell before anything is enqueued.

They read the settings and ask the routers; none touches a database.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from . import conf


def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E001: the ALKSTORE setting is wrong."""
    try:
        conf.current()
    except ImproperlyConfigured as exc:
        return [Error(str(exc), id="django_alkstore.E001")]
    return []


def check_routing(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E002: the tables are routed apart, so a job and its fire could not commit together."""
    models = apps.get_app_config("django_alkstore").get_models()
    aliases = {model.__name__: router.db_for_write(model) for model in models}
    if len(set(aliases.values())) == 1:
        return []
    got = ", ".join(f"{name} in {alias!r}" for name, alias in aliases.items())
    return [
        Error(
            f"expected the models of django_alkstore to be in one database, got {got}",
            hint="Let db_for_write and allow_migrate of your router give them the same alias.",
            id="django_alkstore.E002",
        )
    ]
