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
        self.kind = kind
        self.what = what
        self._calls: dict[str, Callable[..., object]] = {}
        self._beating: set[str] = set()

    def register(self, name: str, *, heartbeat: bool = False) -> Callable[[Call], Call]:
        """Decorate the callable that jobs of ``name`` are handed to, one job at a time.

        ``heartbeat``: the worker renews the claim for as long as the callable runs. Raises
        InvalidName, ReservedName, and AlreadyRegistered when another one has the name.
        """
        name = valid_name(self.kind, name)

        def add(call: Call) -> Call:
            if not callable(call):
                raise InvalidOption(expected(f"a {self.what}", "callable", call))
            if self._calls.setdefault(name, call) != call:
                message = f"expected {self.kind} {name!r} to have one {self.what}, got a second"
                raise AlreadyRegistered(message)
            if heartbeat:
                self._beating.add(name)
            return call

        return add

    def get(self, name: str) -> Callable[..., object] | None:
        return self._calls.get(name)

    def has_heartbeat(self, name: str) -> bool:
        """Whether the worker renews the claims of ``name``'s jobs while they run."""
        return name in self._beating

    def names(self) -> list[str]:
        return sorted(self._calls)


deliveries = Registry("outbox", "delivery")
handlers = Registry("queue", "handler")
delivery = deliveries.register
handler = handlers.register


def autodiscover() -> None:
    """Import the ``jobs`` module of each installed app that has one."""
    autodiscover_modules("jobs")
