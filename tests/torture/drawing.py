"""Draws that leave nothing out: each thing comes in its share, in an order that chance decides."""


def drawn(chance, shares):
    """Without end: in every ``sum(shares.values())`` things, each as often as its share says."""
    while True:
        yield from chance.sample(list(shares), sum(shares.values()), counts=shares.values())
