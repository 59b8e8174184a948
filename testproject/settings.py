"""Settings of the demo shop, which is also the project that the tests run in.

``ALKSTORE_DATABASE_URL`` points both at a database: ``postgresql://user@host:port/name`` or
``mysql://user:password@host:port/name``. Without it they use a SQLite file.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

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


def database(url):
    if not url:
        return sqlite_database(BASE_DIR / "db.sqlite3")
    if url.startswith("sqlite:///"):
        return sqlite_database(url.removeprefix("sqlite:///"))
    return server_database(url)


SECRET_KEY = "the demo's own; a real project has a secret one"
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
DATABASES = {"default": database(os.environ.get("ALKSTORE_DATABASE_URL"))}
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
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"  # ours are BigAutoField all the same
ALKSTORE = {"LEASE_SECONDS": float(os.environ.get("SHOP_LEASE_SECONDS", "10"))}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_alkstore": {"handlers": ["stderr"], "level": "INFO"}},
}
