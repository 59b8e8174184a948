"""The shop's settings for a run: short leases and polls, so that much happens in a minute."""

from testproject.settings import *
from testproject.settings import INSTALLED_APPS as SHOP_APPS

INSTALLED_APPS = [*SHOP_APPS, "tests.torture.parties"]
ALKSTORE = {
    "LEASE_SECONDS": 2.0,
    "POLL_INTERVAL": 0.3,
    "QUEUES": {"reports": {"visibility_timeout": 2, "backoff": 0.1, "retention": 3600}},
}
