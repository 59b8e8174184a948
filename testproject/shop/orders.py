"""Placing an order: the order and the message that sends its receipt commit together, or not."""

from django.db import transaction

from django_alkstore import outbox

from .models import Order

SOLD_OUT = {"a unicorn"}


class SoldOut(Exception):
    """The item cannot be had, so the order is taken back."""


def place_order(email: str, item: str, **receipt_options: object) -> Order:
    """Place an order; raises SoldOut, and then neither order nor receipt has ever existed.

    ``receipt_options`` are those of an enqueue, such as ``visibility_timeout``.
    """
    with transaction.atomic():
        order = Order.objects.create(email=email, item=item)
        receipt = {"order": order.pk, "email": email, "item": item}
        outbox("receipts").enqueue_tx(receipt, **receipt_options)
        reserve(item)
    return order


def reserve(item: str) -> None:
    if item in SOLD_OUT:
        raise SoldOut(item)
