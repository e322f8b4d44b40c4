"""Why somebody sees each repository that they see, as far as GitLab says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from reposync.access.gitlab import GUEST, Standing
from reposync.app.gitlab_access import EVERYBODY, CatalogueRights, JobSight, Sight

REPORTER = 20
"""The lowest level whose members read the code whatever the visibility is."""
ROLES = {
    GUEST: "Guest",
    15: "Planner",
    REPORTER: "Reporter",
    25: "Security Manager",
    30: "Developer",
    40: "Maintainer",
    50: "Owner",
}
"""By their levels (lib/gitlab/access.rb)."""


@dataclass(frozen=True, slots=True)
class Explained:
    """`gitlab`: the address of the server that decided at `as_of`. `reasons`: by id of the repository; an empty one is
    not known. `is_complete`: whether GitLab said why it shows each project."""

    gitlab: str
    as_of: datetime
    reasons: Mapping[str, str]
    is_complete: bool = True

    @classmethod
    def of_reader(
        cls, gitlab: str, sight: Sight, catalogue: CatalogueRights, standings: Mapping[str, Standing] | None
    ) -> Explained:
        """`standings`: None if GitLab did not say."""
        shown = sight.visible.ids or frozenset[str]()
        found = dict[str, str]()
        for word in (*sorted(sight.reader.groups), EVERYBODY):
            why = "its readers are everybody" if word == EVERYBODY else f"member of {word}"
            found |= dict.fromkeys(catalogue.readers.get(word, ()), f"{why} (`readers` of the registry)")
        for number in sight.reader.readable:
            why = "may maintain the project" if number in sight.reader.maintained else "GitLab shows its code"
            for identity in catalogue.projects.get(number, ()):
                found[identity] = _why((standings or {}).get(identity), why)
        reasons = {identity: found.get(identity, "") for identity in shown}
        return cls(gitlab, sight.reader.as_of, reasons, standings is not None)

    @classmethod
    def of_job(cls, gitlab: str, sight: JobSight, catalogue: CatalogueRights, as_of: datetime) -> Explained:
        own = catalogue.projects.get(sight.job.project_id, frozenset())
        named = "its readers name the project of the job (`readers` of the registry)"
        reasons = {each: "the project of the job" if each in own else named for each in sight.visible.ids or ()}
        return cls(gitlab, as_of, reasons)


def _why(standing: Standing | None, otherwise: str) -> str:
    """`otherwise`: as for an administrator, who is no member of a private project."""
    if standing is None:
        return otherwise
    member = f"member: {ROLES.get(standing.level, f'level {standing.level}')}" if standing.level >= GUEST else ""
    if standing.visibility == "private" or standing.level >= REPORTER:
        return member or otherwise
    # Below the role of a reporter, the visibility may have decided, or both together.
    return f"{standing.visibility}, {member}" if member else standing.visibility
