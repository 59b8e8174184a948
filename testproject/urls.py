from django.contrib import admin
from django.urls import include, path

from .shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("alkstore/", include("django_alkstore.urls")),
    path("orders/", views.place, name="place-order"),
]
