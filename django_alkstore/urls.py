"""Include these under a path of your own: ``path("alkstore/", include("django_alkstore.urls"))``."""

from django.urls import path

from . import views

app_name = "django_alkstore"
urlpatterns = [
    path("health/", views.health, name="health"),
    path("metrics/", views.metrics, name="metrics"),
]
