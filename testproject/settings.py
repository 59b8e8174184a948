"""Settings of the demo shop, which is also the project that the tests run in.

``ALKSTORE_DATABASE_URL`` points both at a database: ``postgresql://user@host:port/name`` or
``mysql://user:password@host:port/name``. Without it they use a SQLite file. What follows a ``?``
is laid over the settings of that database: names in capitals are its own, others its OPTIONS, as in
``?AUTOCOMMIT=false&isolation_level=serializable``.
"""

import json
import os
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent


def sqlite_database(path):
    """SQLite as the README recommends it: readers beside one writer, writers wait in a queue."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        },
        "TEST": {"NAME": os.environ.get("ALKSTORE_TEST_FILE", str(BASE_DIR / ".test.sqlite3"))},
    }


def server_database(url):
    """A server, from its URL."""
    engines = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
    parts = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{engines[parts.scheme]}",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def options(database, name, text):
    """What a name and a text stand for among the options of a database."""
    if name != "isolation_level" or not database["ENGINE"].endswith("postgresql"):
        return {name: value(text)}
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    # The driver sends its own level with BEGIN alone: statements outside have the session's.
    everywhere = "-c default_transaction_isolation=" + text.replace(" ", r"\ ")
    return {name: IsolationLevel[text.upper().replace(" ", "_")], "options": everywhere}


def value(text):
    """What the text is as JSON, or itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def database(url):
    url, _, query = (url or f"sqlite:///{BASE_DIR / 'db.sqlite3'}").partition("?")
    is_file = url.startswith("sqlite:///")
    found = sqlite_database(url.removeprefix("sqlite:///")) if is_file else server_database(url)
    given = parse_qsl(query)
    found |= {name: value(text) for name, text in given if name.isupper()}
    for name, text in given:
        if not name.isupper():
            found["OPTIONS"] = found.get("OPTIONS", {}) | options(found, name, text)
    return found


def replica_of(database):
    """Another database that never gets the rows of the first: a replica that lags for ever."""
    test_file = database.get("TEST", {}).get("NAME")
    test = {"TEST": {"NAME": f"{test_file}_replica"}} if test_file else {}
    return {**database, "NAME": f"{database['NAME']}_replica", **test}


SECRET_KEY = "the demo's own; a real project has a secret one"
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
DATABASES = {"default": database(os.environ.get("ALKSTORE_DATABASE_URL"))}
DATABASE_ROUTERS = [*filter(None, [os.environ.get("SHOP_REPLICA_ROUTER")])]
if DATABASE_ROUTERS:
    DATABASES["replica"] = replica_of(DATABASES["default"])
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_alkstore",
    "testproject.shop",
    *filter(None, os.environ.get("SHOP_EXTRA_APPS", "").split(",")),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "testproject.urls"
STATIC_URL = "static/"
USE_TZ = os.environ.get("SHOP_USE_TZ", "1") == "1"
TIME_ZONE = os.environ.get("SHOP_TIME_ZONE", "UTC")
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"  # ours are BigAutoField all the same
ALKSTORE = {"LEASE_SECONDS": float(os.environ.get("SHOP_LEASE_SECONDS", "10"))}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_alkstore": {"handlers": ["stderr"], "level": "INFO"}},
}
