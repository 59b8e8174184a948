"""The project's settings with ``RECEIVING_DATABASE``, a JSON object, over those of the database."""

import json
import os

from testproject.settings import *
from testproject.settings import DATABASES

_given = json.loads(os.environ["RECEIVING_DATABASE"])
DATABASES["default"]["OPTIONS"] = {
    **DATABASES["default"].get("OPTIONS", {}),
    **_given.pop("OPTIONS", {}),
}
DATABASES["default"].update(_given)
