from django_alkstore import delivery


@delivery("receipts")
def send_receipt(job):
    print("deliver", job.payload, flush=True)
