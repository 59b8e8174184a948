"""The command that restarts the PostgreSQL server of a run: one that is given, or Debian's.

Nothing but the run may use the server, so it is never restarted unasked.
"""

import shlex
import shutil
import subprocess

RESTART_EVERY = 20.0  # seconds


class CannotRestart(Exception):
    """Why, and what to do."""


def restarts(seconds):
    """When to restart in a run of so many seconds: once at least."""
    times = max(1, round(seconds / RESTART_EVERY) - 1)
    return [seconds * n / (times + 1) for n in range(1, times + 1)]


def restart_command(connection, given):
    """``given`` as an argv, or if it is empty that of the Debian cluster behind the connection."""
    if connection.vendor != "postgresql":
        raise CannotRestart(f"expected PostgreSQL to restart, got {connection.display_name}")
    if given:
        return shlex.split(given)
    version, cluster = _cluster(connection.settings_dict)
    return ["pg_ctlcluster", "--skip-systemctl-redirect", version, cluster, "restart"]


def _cluster(conf):
    """Version and name of the cluster on this host that the settings lead to."""
    host, port = conf["HOST"], str(conf["PORT"] or 5432)
    if host not in ("", "localhost", "127.0.0.1", "::1") and not host.startswith("/"):
        raise CannotRestart(f"expected a server on this host, got one on {host}: {GIVE}")
    if shutil.which("pg_lsclusters") is None:
        raise CannotRestart(f"expected Debian's pg_lsclusters, got a host without it: {GIVE}")
    listed = subprocess.run(
        ["pg_lsclusters", "--no-header"], capture_output=True, text=True, check=True
    )
    found = [line.split() for line in listed.stdout.splitlines()]
    for version, cluster, its_port, *_ in found:
        if its_port == port:
            return version, cluster
    raise CannotRestart(f"expected a Debian cluster at port {port}, got none there: {GIVE}")


GIVE = "name the command, as in --restart-server='pg_ctl -D /srv/data restart'"
