"""What the workers run: ``run_outbox`` imports this module of every installed app."""

import json
import os
from urllib.request import Request, urlopen

from django_alkstore import ClaimedJob, delivery

RECEIVER = "SHOP_RECEIPTS_URL"  # the environment variable with the address of the mail service


@delivery("receipts")
def send_receipt(job: ClaimedJob) -> None:
    """POST the receipt to the mail service; without one, print it.

    An answer that is no success is an exception, so the receipt is sent again later. It may also
    be sent twice, so the service gets the key to tell a second sending from a second receipt.
    """
    if RECEIVER not in os.environ:
        print("deliver", job.payload, flush=True)
        return
    request = Request(
        os.environ[RECEIVER],
        data=json.dumps(job.payload).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": job.idempotency_key},
    )
    with urlopen(request, timeout=30):
        pass
