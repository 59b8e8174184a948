from datetime import timedelta

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from .orders import SoldOut, place_order


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    """Place an order and say when it arrives.

    ``days`` is read only then, so one that is no number is an error after the order was written:
    with ATOMIC_REQUESTS it takes the order and its receipt back.
    """
    try:
        order = place_order(request.POST["email"], request.POST["item"])
    except SoldOut as exc:
        return JsonResponse({"sold out": str(exc)}, status=409)
    arrives = order.placed_at + timedelta(days=int(request.POST.get("days", "3")))
    return JsonResponse({"order": order.pk, "arrives": arrives.date()}, status=201)
