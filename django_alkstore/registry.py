"""What workers run: a delivery for each outbox, a handler for each queue, registered by name.

Each installed app's ``jobs`` module is imported when a worker starts, as ``admin`` modules are.
A second callable for a name is refused, since one of the two would silently never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.utils.module_loading import autodiscover_modules

from .exceptions import AlreadyRegistered, InvalidOption, expected
from .names import valid_name

Call = TypeVar("Call", bound=Callable[..., object])


class Registry:
    """Callables by name; ``kind`` and ``what`` are the words of its messages."""

    def __init__(self, kind: str, what: str) -> None:
        self._kind = kind
        self._what = what
        self._calls: dict[str, Callable[..., object]] = {}

    def register(self, name: str) -> Callable[[Call], Call]:
        """Decorate the callable that jobs of ``name`` are handed to, one job at a time.

        Raises InvalidName, ReservedName, and AlreadyRegistered when another one has the name.
        """
        name = valid_name(self._kind, name)

        def add(call: Call) -> Call:
            if not callable(call):
                raise InvalidOption(expected(f"a {self._what}", "callable", call))
            if self._calls.setdefault(name, call) is not call:
                message = f"expected {self._kind} {name!r} to have one {self._what}, got a second"
                raise AlreadyRegistered(message)
            return call

        return add

    def get(self, name: str) -> Callable[..., object] | None:
        return self._calls.get(name)

    def names(self) -> list[str]:
        return sorted(self._calls)


deliveries = Registry("outbox", "delivery")
handlers = Registry("queue", "handler")
delivery = deliveries.register
handler = handlers.register


def autodiscover() -> None:
    """Import the ``jobs`` module of each installed app that has one."""
    autodiscover_modules("jobs")
