# ruff: noqa: T201 (it is a command of its own)
"""Which of the locked dependencies have known vulnerabilities, by pip-audit. `make audit`.

Needs a vulnerability service on the network. pip-audit itself ends well where the service knows none of the packages,
and with a traceback where it cannot be reached; here nothing counts as audited that was not.

Exit codes: 0 nothing known against any of them, 1 something is, 2 it could not be found out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from typing import NoReturn

SECONDS = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("lock", help="a requirements file with hashes")
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    parser.add_argument("--osv-url", help="another server that speaks OSV's API")
    asked = parser.parse_args()

    command = [sys.executable, "-m", "pip_audit", "--requirement", asked.lock, "--require-hashes", "--no-deps"]
    command += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
    command += ["--vulnerability-service", asked.service]
    command += ["--osv-url", asked.osv_url] if asked.osv_url else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603 (our own words)
    except subprocess.TimeoutExpired:
        stop(f"{asked.service} did not answer within {SECONDS} s")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        stop(reason(done.stderr, asked.service))

    skipped = sorted(each["name"] for each in found if "skip_reason" in each)
    struck = [each for each in found if each.get("vulns")]
    for each in struck:
        for vulnerability in each["vulns"]:
            names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", [])])
            fixed = ", ".join(vulnerability.get("fix_versions", [])) or "no version yet"
            print(f"{each['name']} {each['version']}: {names}; mended in {fixed}")
    if struck:
        print(f"{len(struck)} of {len(found)} dependencies in {asked.lock} have known vulnerabilities.")
        return 1
    if skipped or not found:
        shown = ", ".join(skipped[:5]) + (f" and {len(skipped) - 5} more" if len(skipped) > 5 else "")
        stop(f"{asked.service} knows nothing of {len(skipped)} of {len(found)} dependencies: {shown}")
    print(f"{len(found)} dependencies in {asked.lock}: no known vulnerability ({asked.service}).")
    return 0


def reason(said: str, service: str) -> str:
    """What of pip-audit's last words a person can use."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    if re.search(r"ConnectionError|Max retries|ConnectTimeout|ReadTimeout|resolve|refused", last):
        host = re.search(r"host='([^']+)'", last)
        return f"the service {service} cannot be reached{f' at {host[1]}' if host else ''}"
    return last.strip()[:300]


def stop(why: str) -> NoReturn:
    print(f"error: not audited: {why}.", file=sys.stderr)
    print(
        "  It asks a service on the network: set HTTPS_PROXY if that is the way there, or name another one, as in\n"
        '  make audit AUDIT="--service osv --osv-url https://osv.example.com"',
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
