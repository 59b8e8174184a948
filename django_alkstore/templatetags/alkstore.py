"""``{% alkstore_overview %}``: the overview, wherever a template of the admin wants it."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import Context

from ..overview import context as overview

register = template.Library()


@register.inclusion_tag("admin/django_alkstore/overview.html", takes_context=True)
def alkstore_overview(context: Context) -> dict[str, Any]:
    """Nothing for a user who may not look at jobs."""
    return overview(context["request"].user)
