#!/opt/reposync/bin/python -IS
"""Exit 0 where the daemon in this container answers, 1 with a sentence where it does not. For HEALTHCHECK.

Whether it lives, not whether its servers do: a database that is away is no reason to replace a container.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

DEFAULT = "http://127.0.0.1:8080/healthz"


def main() -> None:
    url = urlsplit(os.environ.get("REPOSYNC_HEALTH_URL") or DEFAULT)
    try:
        connection = HTTPConnection(url.hostname or "127.0.0.1", url.port or 80, timeout=4)
        connection.request("GET", url.path or "/healthz")
        status = connection.getresponse().status
    except (OSError, ValueError, HTTPException) as error:
        sys.exit(f"no answer from {url.geturl()}: {error}")
    if status != 200:
        sys.exit(f"{url.geturl()} answers {status}")


if __name__ == "__main__":
    main()
