"""The address and the token of GitLab's own command line, if it is installed and signed in."""

from __future__ import annotations

import shutil
import subprocess
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10.0


def default_host() -> str | None:
    """The host of GitLab that `glab` uses."""
    return _config("host")


def token_of(url: str) -> str | None:
    """The token of `glab` for the server. None for one of a sign-in by a browser: it ends after two hours, and `glab`
    renews it for itself."""
    host = urlsplit(url).netloc
    if _config("is_oauth2", "--host", host) == "true":
        return None
    return _config("token", "--host", host)


def _config(*words: str) -> str | None:
    """A value of its configuration, or of the keyring where it keeps tokens."""
    if (program := shutil.which("glab")) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the person's own program
            [program, "config", "get", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
