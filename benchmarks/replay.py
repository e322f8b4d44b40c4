"""How well a search finds what the next commits of public repositories changed, by what their messages say.

python -m benchmarks.replay --repositories DIR [--half development|held-back] [--only NAME ...] [--last 60]
    [--provider none|static|local] [--state DIR] [--newest] [--json FILE] [--compare FILE]

Runs `reposync eval --from-history NAME --replay`: each question is asked of the index of a state before its commit, and
the rules that choose questions are the product's: commits before cc332d9f counted changelogs among the answers, and so
do the figures that were published before. `--repositories` holds git repositories as `OWNER/NAME`; one that is
missing, or lacks the pinned commit, is left out and named, and `--newest` takes its HEAD instead. The state is kept in
`--state`. Settings are chosen on the development half; the held-back half is only reported. `--json` keeps the
questions with their ranks, and `--compare` shows the difference to such a file, paired by question, with its standard
error.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import machine
from benchmarks.public_index import Missing, State
from benchmarks.public_questions import Repository
from reposync.search.evaluation import Found, gains

_PINNED = {
    "development": (
        ("pallets/click", "python", "2c8cd3ac958a7eb316d67f2d316c27086c4c0369"),
        ("colinhacks/zod", "typescript", "e516c3baf22615e20934116abebfed6c000222c2"),
        ("trpc/trpc", "typescript", "340811ba5320637fbaf48fccf3dbfdd258bd34db"),
        ("expressjs/express", "javascript", "a3714473feb3d2908add734d340e7755fd85e0a3"),
        ("junegunn/fzf", "go", "956562daaa82ddf55ea8f7aeab56883377b742c6"),
        ("BurntSushi/ripgrep", "rust", "3fce3b5bb0236da2df6d99672afb8a719642eca7"),
        ("jqlang/jq", "c", "579e6f76cffd7643ba4002a2c3618a5ea710589a"),
        ("google/leveldb", "cpp", "78a352f47ed6c1e9d750545e9b242289185b87e1"),
        ("composer/composer", "php", "eba7baa59eb1b59246cf9800b0120fe78915b6ac"),
        ("mockito/mockito", "java", "ee8a330da0218f32d5964acdeaa3ac39e2c6ce14"),
        ("sinatra/sinatra", "ruby", "cb22afd7902b566b6eaba6c4ea89739494a65d12"),
        ("DapperLib/Dapper", "csharp", "6d48ef664acc7298c649e2d449d903b3360d5a90"),
    ),
    "held-back": (
        ("simonw/datasette", "python", "481df7ff6d78a8ccf919984d27f27201b081bd53"),
        ("jelmer/dulwich", "python", "53315d31f67a00bc75956423148a58065da55aa0"),
        ("encode/starlette", "python", "cb8f84f5284dc301ca7a31eb732b9e140769dd48"),
        ("borgbackup/borg", "python", "fc74d5f643d17d5341e303cd5ed4ddeb425660f0"),
        ("sourcebot-dev/sourcebot", "typescript", "7f7be84f230b2ab85726d95df71a3114d489e2b0"),
        ("procrastinate-org/procrastinate", "python", "f099a753730d5492bdebdc1c1f2796ffa5cf5671"),
    ),
}
_FIGURES = ("recall@1", "recall@10", "ndcg")


def repositories(half: str, only: Sequence[str]) -> list[Repository]:
    """Raises SystemExit for a name that no repository of this half has."""
    found = [
        Repository(name=place.split("/")[1], language=language, url=f"https://github.com/{place}.git", revision=commit)
        for place, language, commit in _PINNED[half]
    ]
    if unknown := sorted({*only} - {each.name for each in found}):
        raise SystemExit(f"The {half} half has no {', '.join(unknown)}.")
    return [each for each in found if not only or each.name in only]


def values(answers: Sequence[Mapping[str, Any]], way: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A row for each question, a column for each of `_FIGURES`."""
    each = [gains(Found(tuple(answer["ranks"][way]), len(answer["paths"]), None)) for answer in answers]
    return np.array([(one.recall[0], one.recall[-1], one.ndcg) for one in each])


def row(title: str, shown: np.ndarray[Any, Any], spread: np.ndarray[Any, Any], count: int, *, sign: str = "") -> str:
    figures = " | ".join(f"{mean:{sign}.3f} ± {error:.3f}" for mean, error in zip(shown, spread, strict=True))
    return f"| {title} | {count} | {figures} |"


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for way in next(iter(results.values()))[0]["ranks"]:
        print(f"\n| by {way} | questions | {' | '.join(_FIGURES)} |\n|---|---|---|---|---|")
        every = [values(answers, way) for answers in results.values()]
        for name, each in zip([*results, "**all**"], [*every, np.concatenate(every)], strict=True):
            print(row(name, each.mean(0), each.std(0) / len(each) ** 0.5, len(each)), flush=True)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Over the questions that both have."""
    earlier = {(name, each["commit"]): each for name, answers in before.items() for each in answers}
    pairs = [
        (earlier[name, each["commit"]], each)
        for name, answers in after.items()
        for each in answers
        if (name, each["commit"]) in earlier
    ]
    if not pairs:
        raise SystemExit("The two have no question in common.")
    ways = [way for way in pairs[0][1]["ranks"] if way in pairs[0][0]["ranks"]]
    print(f"\n| difference | questions | {' | '.join(_FIGURES)} |\n|---|---|---|---|---|")
    for way in ways:
        change = values([now for _, now in pairs], way) - values([then for then, _ in pairs], way)
        print(row(way, change.mean(0), change.std(0) / len(change) ** 0.5, len(change), sign="+"))


def measure(state: State, chosen: Sequence[Repository], options: argparse.Namespace) -> dict[str, Any]:
    state.folder.mkdir(parents=True, exist_ok=True)
    there = []
    for each in chosen:
        try:
            state.pin(each, options.repositories, newest=options.newest)
            there.append(each)
        except Missing as reason:
            print(f"left out: {reason}", flush=True)
    if not there:
        raise SystemExit(f"{options.repositories} has none of the repositories.")
    state.register(there, options.provider, all_files=True)
    state.sync([each.name for each in there])
    found = {}
    for each in there:
        scores = state.evaluate(each.name, options.last)
        left_out = ", ".join(f"{count} {rule}" for rule, count in scores["left_out"].items())
        print(f"{each.name} ({each.language}): {scores['questions']} questions, left out: {left_out}", flush=True)
        found[each.name] = scores["answers"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=Path, required=True, metavar="DIR")
    parser.add_argument("--half", choices=tuple(_PINNED), default="development")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--last", type=int, default=60)
    parser.add_argument("--provider", choices=("none", "static", "local"), default="static")
    parser.add_argument("--state", type=Path, metavar="DIR", help="default: in the temporary directory")
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(machine(), flush=True)
    folder = options.state or Path(tempfile.gettempdir()) / "reposync-benchmarks" / f"replay-{options.provider}"
    os.environ["REPOSYNC_ENGINE_IDLE_SECONDS"] = "60"
    found = measure(State(folder), repositories(options.half, options.only), options)
    table(found)
    if options.compare:
        difference(json.loads(options.compare.read_text()), found)
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
