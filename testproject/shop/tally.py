"""What the demo counted, the table it prints, and the verdict: was anything lost or leaked?"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from .receiver import Receipt


@dataclass
class Tally:
    """Orders as the database has them, receipts as the receiver saw them, fires as the ledger
    has them and their jobs as the queue has them."""

    tried: int = 0  # orders that were placed or came to be refused
    orders: list[Receipt] = field(default_factory=list)
    mailed: list[Receipt] = field(default_factory=list)
    failed: list[Receipt] = field(default_factory=list)
    cut_off: list[Receipt] = field(default_factory=list)  # their worker was killed
    duplicates: list[Receipt] = field(default_factory=list)
    in_outbox: int = 0
    every: timedelta = timedelta(seconds=1)
    boundaries: list[datetime] = field(default_factory=list)  # one for each fire
    reports: list[datetime] = field(default_factory=list)  # the boundary of each report's job

    @property
    def retried(self) -> list[Receipt]:
        return [receipt for receipt in self.failed if receipt in self.mailed]

    @property
    def recovered(self) -> list[Receipt]:
        return [receipt for receipt in self.cut_off if receipt in self.duplicates]

    def rows(self) -> list[tuple[str, int, str]]:
        """The table: what, how many, and the words that explain it."""
        rolled_back = self.tried - len(self.orders)
        per_boundary = max(Counter(self.reports).values(), default=0)
        fires = f"{len(set(self.boundaries))} boundaries, {len(self.reports)} jobs"
        return [
            ("ordered", self.tried, ""),
            ("rolled back", rolled_back, "neither order nor receipt exists"),
            ("delivered", len(self.mailed), "each receipt was mailed once"),
            ("retried", len(self.retried), f"its first delivery failed: {named(self.retried)}"),
            ("recovered", len(self.recovered), f"its worker was killed: {named(self.recovered)}"),
            (
                "duplicates seen by the receiver",
                len(self.duplicates),
                f"came twice, was mailed once: {named(self.duplicates)}",
            ),
            ("fires per boundary", per_boundary, fires),
        ]

    def table(self) -> str:
        width = max(len(what) for what, *_ in self.rows())
        lines = (f"  {what:<{width}}  {n:>3}  {words}".rstrip() for what, n, words in self.rows())
        return "\n".join(lines)

    def faults(self) -> list[str]:
        """What must not be: a sentence for each. Empty if nothing was lost and nothing leaked."""
        mailed, orders = Counter(self.mailed), Counter(self.orders)
        found = {
            "lost: no receipt was mailed for": orders - mailed,
            "leaked: a receipt was mailed without": mailed - orders,
            "not delivered again after its worker was killed:": Counter(
                receipt for receipt in self.cut_off if receipt not in self.duplicates
            ),
        }
        sentences = [f"{words} {named(receipts)}" for words, receipts in found.items() if receipts]
        if self.in_outbox:
            sentences.append(f"{self.in_outbox} receipts are still in the outbox")
        return sentences + self._wrong_fires()

    def _wrong_fires(self) -> list[str]:
        if not self.boundaries:
            return ["no boundary of the schedule fired"]
        first, last = min(self.boundaries), max(self.boundaries)
        grid = Counter(first + n * self.every for n in range((last - first) // self.every + 1))
        found = {
            "lost: no fire is recorded for": grid - Counter(self.boundaries),
            "lost: no job was enqueued for": grid - Counter(self.reports),
            "leaked: a job too many was enqueued for": Counter(self.reports) - grid,
        }
        return [
            f"{words} boundary {', '.join(f'{at:%H:%M:%S}' for at in sorted(wrong))}"
            for words, wrong in found.items()
            if wrong
        ]


def named(receipts: Counter[Receipt] | list[Receipt]) -> str:
    return ", ".join(f"order {number}" for number, _ in sorted(receipts)) or "none"
