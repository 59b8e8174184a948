"""PgBouncer in transaction mode, in front of a PostgreSQL server."""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .processes import PATIENCE, until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
INI = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {free}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users.txt
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
server_idle_timeout = 1
ignore_startup_parameters = extra_float_digits, options
"""


@contextmanager
def pooled(url, directory: Path, sessions):
    """The database of the URL behind a pooler with so many sessions; its URL there."""
    parts, free = urlsplit(url), free_port()
    server = {"host": parts.hostname, "port": parts.port or 5432}
    ini = INI.format(free=free, directory=directory, sessions=sessions, **server)
    (directory / "pgbouncer.ini").write_text(ini)
    user, password = unquote(parts.username), unquote(parts.password or "")
    (directory / "users.txt").write_text(f'"{user}" "{password}"\n')
    process = started(directory)
    try:
        until(lambda: accepts(free) or process.poll() is not None)
        yield parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{free}").geturl()
    finally:
        process.kill()
        process.wait(PATIENCE)


def started(directory):
    as_nobody = {}
    if os.geteuid() == 0:  # which it refuses to be
        as_nobody = {"user": "nobody"}
        let_others_read(directory)
    with (directory / "pgbouncer.txt").open("wb") as log:
        argv = [PROGRAM, str(directory / "pgbouncer.ini")]
        return subprocess.Popen(argv, stdout=log, stderr=log, **as_nobody)


def let_others_read(directory):
    for path in (directory, *directory.parents):
        mode = path.stat().st_mode
        if mode & 0o005 != 0o005:
            path.chmod(mode | 0o055)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
