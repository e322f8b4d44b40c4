"""The reasons for files that are not indexed, as the documentation and the pages explain them."""

import re
from pathlib import Path

from reposync.content.model import REMEDIES, Skip

PAGE = Path(__file__).parents[3] / "docs/read-the-history.md"


def test_the_documentation_has_each_reason_with_the_remedy_that_the_pages_show():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    remedies = {reason: f"{meaning} {remedy}" for reason, meaning, remedy in rows}
    for reason in Skip:
        assert REMEDIES.get(reason, "") in remedies[reason], reason
