"""What of the chart is made from something else: the registry's schema in values.schema.json, the table in README.md.

python helm/generate.py writes both; with --check it writes nothing, and exits 1 where they are not as they should be.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "reposync"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"

_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]+):")


def values_schema() -> str:
    """values.schema.json with the registry's schema as the program has it now."""
    schema = json.loads(SCHEMA.read_text())
    registry = json.loads((ROOT / "config" / "schema.json").read_text())
    del registry["$schema"]
    del registry["$id"]  # references would begin at the registry
    schema["$defs"]["registry"] = _for_helm(registry)
    return json.dumps(schema, indent=2) + "\n"


def _for_helm(part: Any) -> Any:
    """Helm's regular expressions know no look-ahead: what cannot be said to it the program says when it starts.
    References begin at the top of the values."""
    if isinstance(part, list):
        return [_for_helm(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: value.replace("#/$defs/", "#/$defs/registry/$defs/") if key == "$ref" else _for_helm(value)
        for key, value in part.items()
        if not (key == "pattern" and isinstance(value, str) and "(?!" in value)
    }


def readme() -> str:
    """README.md with the table as values.yaml has it now."""
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{values_table()}{END}{after}"


def values_table() -> str:
    rows = [f"| `{name}` | `{default}` | {text} |\n" for name, default, text in documented_values()]
    return "| key | default | |\n|---|---|---|\n" + "".join(rows)


def documented_values() -> Iterator[tuple[str, str, str]]:
    """Name, default as JSON, and what `# --` above it says, for every key of values.yaml that has such a line."""
    text = (CHART / "values.yaml").read_text()
    values, path = yaml.safe_load(text), list[tuple[int, str]]()
    comment = ""
    for line in text.splitlines():
        if line.strip().startswith("# -- "):
            comment = line.strip().removeprefix("# -- ")
            continue
        if found := _KEY.match(line):
            depth = len(found["indent"])
            path = [*((at, key) for at, key in path if at < depth), (depth, found["key"])]
            if comment:
                keys = [key for _, key in path]
                yield ".".join(keys), json.dumps(_at(values, keys)), comment
        comment = ""


def _at(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values[key]
    return values


def main() -> int:
    made = {SCHEMA: values_schema(), README: readme()}
    stale = [path for path, text in made.items() if path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not as `python helm/generate.py` makes it\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
