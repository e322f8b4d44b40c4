"""The fusion of what was found: by words and by meaning, by several phrasings of a question, and at the places of a
pasted text. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

from reposync.vectors.named_places import NamedPlace
from reposync.vectors.port import Candidate, PointId

# Exponent of BM25 scores beside cosines: the words of a sentence are in many chunks, whose scores are not far below the
# best.
_STEEPNESS: Final = 1.5
_OTHERS_SHARE: Final = 0.5
"""How much the scores of the phrasings beside the best one count. Of 160 commits of pip, subject and sentences of the
message as phrasings: MRR 0.515 by the subject alone, 0.549 with 0, 0.572 with 0.15, 0.576 with 0.5, 0.556 with 1, and
0.538 by reciprocal ranks (k = 10)."""
_FINDS_FROM: Final = 0.5
"""The share of the best score from which a phrasing is said to find a chunk: in a small repository, each meets all."""


_BEST_SCORE: Final = 10.0
"""Above all that phrasings give, which is at most 7 for eight of them; each following place has a little less."""


class Fused(NamedTuple):
    """A point that was found, and the two parts of its score."""

    id: PointId
    point: dict[str, Any]
    words: float
    meaning: float

    @property
    def score(self) -> float:
        return self.words + self.meaning


def fused(by_words: Sequence[dict[str, Any]], by_meaning: Sequence[dict[str, Any]], words_weight: float) -> list[Fused]:
    """The points of both lists, best first, scores at most 1.

    A sum of scores, and not of reciprocal ranks: it keeps how much better the first is than the second. BM25 scores are
    divided by the best one. Cosines lie close together, so that the worst candidate becomes 0.
    """
    weight = words_weight if by_words and by_meaning else 1.0
    steepness = _STEEPNESS if by_meaning else 1.0
    best = max((point["score"] for point in by_words), default=0.0) or 1.0
    cosines = [point["score"] for point in by_meaning]
    lowest = min(cosines, default=0.0)
    spread = max(cosines, default=0.0) - lowest
    words = {point["id"]: weight * (point["score"] / best) ** steepness for point in by_words}
    share = 1.0 - weight if by_words else 1.0
    meaning = {point["id"]: share * ((point["score"] - lowest) / spread if spread else 1.0) for point in by_meaning}
    points = {point["id"]: point for point in (*by_words, *by_meaning)}
    found = [Fused(number, each, words.get(number, 0.0), meaning.get(number, 0.0)) for number, each in points.items()]
    return sorted(found, key=lambda each: -each.score)


def best_of_each(found: Sequence[Sequence[Fused]], most: int) -> list[list[Fused]]:
    """Of what each phrasing found, those among the first of all: the best of each, the second of each, and so on, until
    they are `most` points."""
    if len(found) == 1:
        return [list(found[0][:most])]
    in_turn = (each.id for rank in zip_longest(*found) for each in rank if each is not None)
    chosen = set(islice(dict.fromkeys(in_turn), most))
    return [[each for each in one if each.id in chosen] for one in found]


def fused_phrasings(ranked: Sequence[Sequence[Candidate]]) -> Sequence[Candidate]:
    """What several phrasings found, each best first, best first. The score of the phrasing that finds a chunk best, and
    a share of those of the others: what several find comes before what one finds as well."""
    if len(ranked) == 1:
        return ranked[0]
    found: dict[PointId, list[tuple[int, Candidate]]] = {}
    for number, candidates in enumerate(ranked, 1):
        for each in candidates:
            found.setdefault(each.id, []).append((number, each))
    return sorted(map(_together, found.values()), key=lambda each: -each.score)


def _together(found: Sequence[tuple[int, Candidate]]) -> Candidate:
    ordered = sorted(found, key=lambda each: -each[1].score)
    best = ordered[0][1]
    added = _OTHERS_SHARE * sum(each.score for _, each in ordered[1:])
    # The prior multiplies all parts.
    parts = {**best.parts, "others": added / best.parts.get("prior", 1.0)}
    finding = [number for number, each in ordered if each.score >= _FINDS_FROM * best.score]
    return best.scored(best.score + added, parts, finding)


def candidates_at(
    places: Sequence[NamedPlace], files: Sequence[Sequence[str]], chunks: Sequence[Candidate]
) -> list[Candidate]:
    """Each chunk once, by the first place that it is at. `files`: of each place. A place without a line is at the first
    chunk of its file, as is a line that the file does not have any more."""
    of_file: dict[tuple[str, str], list[Candidate]] = {}
    for chunk in sorted(chunks, key=lambda each: each.start_line):
        of_file.setdefault((chunk.version, chunk.path), []).append(chunk)
    found: dict[PointId, Candidate] = {}
    for place, paths in zip(places, files, strict=True):
        for (_, path), of_this in of_file.items():
            if path in paths:
                line = place.line or 1
                chunk = next((each for each in of_this if each.start_line <= line <= each.end_line), of_this[0])
                score = _BEST_SCORE - len(found) / 100
                found.setdefault(chunk.id, chunk.scored(score, {"frame": score}))
    return list(found.values())
