"""Whether one commit comes after another, asked of a git server that has no other door than smart HTTP.

The server is asked for the tip as if the commit were here already, and for commits alone (`filter tree:0`). What it
sends is the tip's history without the commit's own; the commit is a part of the first where one of those that came has
it for a parent. The acknowledgements of a negotiation would be less to read, and do not tell: git counts a commit's
parents as had, so that it says `ready` of a side branch, too (upload-pack.c, `do_got_oid`).
"""

from __future__ import annotations

import asyncio

from reposync.errors import SourceCorrupt
from reposync.sources.ancestry import MAX_COMMITS, Ancestry
from reposync.sources.git_protocol import FetchRefused
from reposync.sources.objects import COMMIT
from reposync.sources.packs import PackDamaged
from reposync.sources.smart_http import UploadPack
from reposync.sources.spool import ReceivedPack, SpoolFull

COMMITS_ALONE = "tree:0"
MAX_HISTORY_BYTES = 64 * 1024 * 1024
"""Of one answer, on disk: some 250,000 commits."""
_UNKNOWN = "not our ref"


async def ancestry_by_fetch(server: UploadPack, commit: str, tip: str) -> Ancestry:
    """How `commit`, a full name, stands to `tip`. `server` may send MAX_HISTORY_BYTES.

    Two fetches: one commit, which shows that it is there, and what lies between. Raises GitHttpRefused, SourceCorrupt,
    SourceUnavailable.
    """
    if commit == tip:
        return Ancestry.CONTAINED
    if not (await server.advertised()).filters:
        return Ancestry.UNKNOWABLE
    try:
        found = await server.fetch([commit], depth=1, filter_spec=COMMITS_ALONE)
    except FetchRefused as refused:
        return Ancestry.UNKNOWN_COMMIT if _UNKNOWN in str(refused) else Ancestry.UNKNOWABLE
    if not await asyncio.to_thread(_is_commit, found, commit):
        return Ancestry.UNKNOWN_COMMIT
    try:
        pack = await server.fetch([tip], haves=[commit], filter_spec=COMMITS_ALONE)
    except FetchRefused as refused:
        # The tip went with a branch that was rewritten, and its index is about to follow.
        return Ancestry.NOT_CONTAINED if _UNKNOWN in str(refused) else Ancestry.UNKNOWABLE
    except SpoolFull:
        return Ancestry.TOO_FAR
    try:
        return await asyncio.to_thread(_read, pack, commit)
    except PackDamaged as error:
        raise SourceCorrupt(f"The history from {server.shown} cannot be read: {error}.") from error
    finally:
        pack.close()  # the client may be gone: the thread then ends at its next object


def _is_commit(pack: ReceivedPack, sha: str) -> bool:
    """And not a tree, a blob or a tag, which can be asked for as well."""
    try:
        return bool(pack.contents([sha], COMMIT))
    except (PackDamaged, KeyError):
        return False
    finally:
        pack.close()


def _read(pack: ReceivedPack, commit: str) -> Ancestry:
    parent = b"parent " + commit.encode()
    for number, content in enumerate(pack.commits()):
        if parent in content.partition(b"\n\n")[0].split(b"\n"):
            return Ancestry.CONTAINED
        if number >= MAX_COMMITS:
            return Ancestry.TOO_FAR
    return Ancestry.NOT_CONTAINED
