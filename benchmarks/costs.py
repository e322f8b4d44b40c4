"""What docs/costs.md computes with: chunks and tokens of a repository, and of each commit. Replays a history.

The product's own code decides (rules for paths, chunks); a chunk whose text a point has already costs nothing. Commits
of the first parent, oldest first, each synced for itself; the first sync is that of the commit before them. Tokens:
`minilm` is the tokenizer in this package, that of all-MiniLM-L6-v2; `cl100k` that of OpenAI's text-embedding-3, by the
package bpe-openai, which is not installed with the others.

python -m benchmarks.costs --repository DIR [--commits 200] [--tokenizer cl100k]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import machine
from benchmarks.window_reuse import History, Points, prepared
from reposync.sync.prepare import PreparedFile

MINILM = Path(__file__).resolve().parents[1] / "reposync" / "embedding" / "minilm" / "tokenizer.json"
Count = Callable[[str], int]


def minilm() -> Count:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MINILM))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def cl100k() -> Count:
    encoding = importlib.import_module("bpe_openai").get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text))


TOKENIZERS = {"minilm": minilm, "cl100k": cl100k}


def new_texts(history: History, points: Points, before: str | None, after: str) -> tuple[int, int, list[str]]:
    """Files that were indexed, their bytes, and the texts of chunks that no point had."""
    changed = list(history.changes(before, after))
    contents = history.blobs([sha for _, mode, sha in changed if mode & 0o100000 and not mode & 0o020000])
    files, size_bytes, texts = 0, 0, dict[str, str]()
    for path, mode, sha in changed:
        if not mode:
            points.replace(PreparedFile(path, 0, "", None))
            continue
        file = prepared(path, mode, sha, contents.get(sha, b""))
        if file.chunks:
            files += 1
            size_bytes += file.size_bytes or 0
        texts |= {chunk.content_hash: chunk.text for chunk in file.chunks if not points.has(chunk.content_hash)}
        points.replace(file)
    return files, size_bytes, list(texts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="minilm")
    options = parser.parse_args()
    count = TOKENIZERS[options.tokenizer]()
    print(f"{machine()}\n")
    history, points = History(options.repository), Points()
    first, *later = history.commits(options.commits)
    files, size_bytes, texts = new_texts(history, points, None, first)
    tokens = sum(map(count, texts))
    megabytes = size_bytes / 1e6
    print(
        f"first sync: {files:,} files, {megabytes:.2f} MB, {len(texts):,} chunks ({len(texts) / megabytes:.0f} a MB), "
        f"{tokens:,} tokens: {tokens / len(texts):.0f} a chunk, {tokens / megabytes:,.0f} a MB, "
        f"{sum(map(len, texts)) / tokens:.2f} characters a token"
    )
    chunks_of, tokens_of = [], []
    before = first
    for commit in later:
        _, _, texts = new_texts(history, points, before, commit)
        chunks_of.append(len(texts))
        tokens_of.append(sum(map(count, texts)))
        before = commit
    if later:
        print(
            f"{len(later)} commits: {sum(chunks_of):,} chunks, {sum(tokens_of):,} tokens; a commit: "
            f"{statistics.mean(chunks_of):.1f} chunks, {statistics.mean(tokens_of):,.0f} tokens "
            f"(median {statistics.median(tokens_of):,.0f}, 95th percentile "
            f"{sorted(tokens_of)[len(tokens_of) * 95 // 100]:,})"
        )


if __name__ == "__main__":
    main()
