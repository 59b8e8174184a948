from django.apps import AppConfig


class AlkstoreConfig(AppConfig):
    name = "django_alkstore"
    verbose_name = "Alkstore"
    default_auto_field = "django.db.models.BigAutoField"
