"""A mistake in the documentation is found, and its place is right: what the tests of the pages stand on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docs.pages import read_page
from tests.docs.program import complaint
from tests.docs.shell import as_expected, simple_commands
from tests.docs.snippets import KINDS

PAGE = """# A title, with `code`

Some `first span` and
a [link](other.md#part) and `second span`.

| a | b |
|---|---|
| 1 | `reposync sync --nope` |

1. In a list:

   ```console
   $ reposync history \\
       --limit 3            # a remark
   shown below
   $ reposync version
   ```

## A title, with `code`

<img src="picture.png" alt="">

```yaml
gitlab: []
repositorys: []
```
"""


def test_a_snippet_that_is_refused_names_the_line_of_the_page(tmp_path: Path):
    (fence,) = (each for each in read_page("docs/page.md", PAGE).fences if each.words == ("yaml",))
    (said,) = KINDS[""](fence, [YAML(typ="safe").load(fence.text)], tmp_path)
    assert said.startswith("docs/page.md:25: unknown key `repositorys`")


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("A=1 reposync sync . # why", [["reposync", "sync", "."]]),
        ('export T="$(openssl rand -hex 4),x"', [["openssl", "rand", "-hex", "4"], ["export", "T=X,x"]]),
        ("reposync history --json | head -1 > out 2>&1", [["reposync", "history", "--json"], ["head", "-1"]]),
        ("cd x && reposync \\\n  version; echo 'a; b'", [["cd", "x"], ["reposync", "version"], ["echo", "a; b"]]),
    ],
)
def test_a_line_is_taken_apart_as_a_shell_does(line: str, commands: list[list[str]]):
    assert list(simple_commands(line)) == commands


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reposync sync . --plan", None),
        ("reposync sync --plam", "No such option"),
        ("reposync runs shwo ID", "no command"),
        ("reposync runs show", "ID is missing"),
        ("reposync history --status runing", "Invalid value"),
        ("reposync version now", "too much"),
        ("reposync runs", "does nothing"),
        ("kubectl exec deploy/reposync -- reposync histori", "no command"),
        ("docker compose exec reposync-1 reposync history --limt 3", "No such option"),
        ("helm install reposync ./chart --set x=1", None),
    ],
)
def test_a_command_that_the_program_does_not_know_is_found(line: str, said: str | None):
    found = complaint(line.split(), complete=True)
    assert (found is None) if said is None else (found is not None and said in found)


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("payments: completed at c39ce76340: 3 files stored, in 2.75 s", None, True),
        (
            "payments: completed at c39ce76340: 3 files stored, in 2.75 s",
            "at 0123456789: 14 files stored, in 1 min 3 s",
            True,
        ),
        (
            "payments: completed at c39ce76340: 3 files stored, in 2.75 s",
            "at c39ce76340: 3 files lost, in 2.75 s",
            False,
        ),
        ("a   b ...", "a b and anything", True),
        ("a b", "a b and anything", False),
    ],
)
def test_figures_may_differ_and_words_may_not(shown: str, printed: str | None, fits: bool):
    begins = shown.partition(" at ")[0] if printed and printed.startswith("at ") else ""
    line = shown if printed is None else f"{begins} {printed}".strip()
    assert bool(as_expected(shown).fullmatch(line)) is fits
