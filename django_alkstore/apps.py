from django.apps import AppConfig
from django.core.checks import register

from . import checks


class AlkstoreConfig(AppConfig):
    name = "django_alkstore"
    verbose_name = "Alkstore"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(checks.check_settings)
        register(checks.check_routing)
