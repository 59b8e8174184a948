"""What the workers of a run serve."""

from django_alkstore import delivery, handler

from .acts import receive

delivery("letters")(receive)
delivery("parcels")(receive)
handler("chores", heartbeat=True)(receive)
handler("reports")(receive)
