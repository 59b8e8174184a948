"""The app as Django knows it: it registers the checks, and touches no database at start."""

from django.apps import AppConfig
from django.core.checks import Tags, register

from . import checks


class AlkstoreConfig(AppConfig):
    name = "django_alkstore"
    verbose_name = "Alkstore"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        for check in (
            checks.check_settings, checks.check_routing, checks.check_alias, checks.check_names
        ):  # fmt: skip
            register(check)
        register(checks.check_database, Tags.database)
        register(checks.check_migrated, deploy=True)
        register(checks.check_debug, deploy=True)
