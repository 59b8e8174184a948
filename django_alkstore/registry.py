"""What workers run: a delivery for each outbox, a handler for each queue, registered by name; and
the schedules that are declared beside them.

Each installed app's ``jobs`` module is imported when a worker starts, as ``admin`` modules are.
A second callable for a name is refused, since one of the two would silently never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from .exceptions import AlreadyRegistered, InvalidOption, expected
from .names import valid_name
from .timetables import Plan, plan

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


class Declarations:
    """Plans of schedules by name."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def declare(
        self, spec: str, *, queue: str, name: str | None = None, payload: object = None,
        **options: Any,
    ) -> Callable[[Call], Call]:  # fmt: skip
        """Decorate a handler whose queue is to get a job at each boundary of ``spec``.

        Otherwise as ``schedule``; the name is the handler's dotted path, if not given. The leading
        scheduler puts it in force. Raises what ``schedule`` does, and AlreadyRegistered when another
        has the name.
        """
        wanted = plan(spec, queue, payload, **options)

        def add(call: Call) -> Call:
            path = f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', '')}"
            self.add(valid_name("schedule", path if name is None else name), wanted)
            return call

        return add

    def add(self, name: str, wanted: Plan) -> None:
        """Declare a schedule; raises AlreadyRegistered for a second one of the name."""
        if self._plans.setdefault(name, wanted) != wanted:
            message = f"expected schedule {name!r} to be declared once, got a second declaration"
            raise AlreadyRegistered(message)

    def plans(self) -> dict[str, Plan]:
        return dict(self._plans)


deliveries = Registry("outbox", "delivery")
handlers = Registry("queue", "handler")
declarations = Declarations()
delivery = deliveries.register
handler = handlers.register
scheduled = declarations.declare


def autodiscover() -> None:
    """Import the ``jobs`` module of each installed app that has one."""
    autodiscover_modules("jobs")
