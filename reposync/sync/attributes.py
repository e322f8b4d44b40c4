"""`.gitattributes` of a commit, read only where they changed since the last run."""

from __future__ import annotations

from collections.abc import Sequence

from reposync.content.attributes import Attributes
from reposync.sources.paths import path_bytes, path_text
from reposync.sources.port import Source, TreeEntry
from reposync.store.version_attributes import AttributeFiles

# A hostile repository may hold one in every folder; real ones hold a handful.
MAX_FILES = 200
MAX_BYTES = 64 * 1024


async def read_attributes(source: Source, tree: Sequence[TreeEntry], cached: AttributeFiles) -> dict[str, list[str]]:
    """The linguist lines of every `.gitattributes` of `tree`; asks the source only for blobs that `cached` lacks."""
    files = sorted(
        (entry for entry in tree if _is_attributes(entry)), key=lambda entry: (entry.path.count(b"/"), entry.path)
    )[:MAX_FILES]
    found = {path_text(entry.path): entry for entry in files}
    current = {
        path: list(cached[path]) for path, entry in found.items() if path in cached and cached[path][0] == entry.sha
    }
    wanted = [entry for path, entry in found.items() if path not in current]
    texts: dict[str, str] = {}
    if wanted:
        async for blob in source.read(wanted, max_bytes=MAX_BYTES):
            texts[blob.sha] = Attributes.relevant(blob.content or b"")
    for entry in wanted:
        current[path_text(entry.path)] = [entry.sha, texts.get(entry.sha, "")]
    return current


def parse_attributes(files: AttributeFiles) -> Attributes:
    """The rules, by the folder that each file stands in."""
    return Attributes.parse({path_bytes(path).rpartition(b"/")[0]: text for path, (_, text) in files.items() if text})


def _is_attributes(entry: TreeEntry) -> bool:
    name = entry.path.rpartition(b"/")[2]
    return name == b".gitattributes" and not entry.is_symlink and not entry.is_submodule
