import os

from django.apps import AppConfig

from ..history import JOURNAL, journal


class PartiesConfig(AppConfig):
    """In each process of a run: its calls are recorded, and a planted fault is at work."""

    name = "tests.torture.parties"
    blocks = ()

    def ready(self):
        if JOURNAL not in os.environ:
            return
        from ..mutants import MUTANT, planted
        from ..recording import recorded

        self.blocks = [recorded(journal())]
        if MUTANT in os.environ:
            self.blocks.insert(0, planted(os.environ[MUTANT]))
        for block in self.blocks:  # until the process ends
            block.__enter__()
