"""A mistake in the documentation is found, and its place is right: what the tests of the pages stand on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docs.pages import read_page
from tests.docs.program import complaint
from tests.docs.snippets import KINDS

PAGE = """# A title

```yaml
gitlab: []
repositorys: []
```
"""


def test_a_snippet_that_is_refused_names_the_line_of_the_page(tmp_path: Path):
    (fence,) = (each for each in read_page("docs/page.md", PAGE).fences if each.words == ("yaml",))
    (said,) = KINDS[""](fence, [YAML(typ="safe").load(fence.text)], tmp_path)
    assert said.startswith("docs/page.md:5: unknown key `repositorys`")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reposync sync . --plan", None),
        ("reposync sync --plam", "No such option"),
        ("reposync runs show", "ID is missing"),
        ("reposync history --status runing", "Invalid value"),
        ("kubectl exec deploy/reposync -- reposync histori", "no command"),
        ("helm install reposync ./chart --set x=1", None),
    ],
)
def test_a_command_that_the_program_does_not_know_is_found(line: str, said: str | None):
    found = complaint(line.split(), complete=True)
    assert (found is None) if said is None else (found is not None and said in found)
