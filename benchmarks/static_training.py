"""Training of the table of word vectors: a start by latent semantic analysis, then contrast of pairs.

numpy alone, one thread, fixed seeds: the same pairs give the same bytes.

Start: 256 dimensions of a randomized SVD (Halko, Martinsson and Tropp, 2011) of windows, log term frequency and inverse
document frequency; each row has the length a / (a + p) of smooth inverse frequency (Arora et al., 2017), a = 0.001.
Training: InfoNCE in both directions, Adagrad with one rate for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.static_pairs import Corpus

Floats = NDArray[np.float32]
Numbers = NDArray[np.int32]

DIMENSIONS: Final = 256
EPOCHS: Final = 3
BATCH: Final = 768
NEIGHBOURS: Final = 16
"""Pairs of the same file or package that stay together in a batch: they are hard to tell apart."""
SCALE: Final = 20.0
RATE: Final = 0.01
FEWEST_PACKAGES: Final = 3
FEWEST_WINDOWS: Final = 4
MOST_WORDS: Final = 16_000
"""Those in most packages. With 24,000 or 46,000 no question set has a higher score."""
_START_WINDOWS: Final = 60_000
_START_PASSES: Final = 3
_EXTRA: Final = 16
_FREQUENT: Final = 1e-3
_HELD_OUT: Final = 1_500
_FEWEST_PAIRS: Final = 20


@dataclass(frozen=True)
class Texts:
    """Distinct words of each text with their weights: rows of a sparse matrix."""

    words: Numbers
    weights: Floats
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> tuple[Numbers, Floats]:
        here = slice(self.starts[number], self.starts[number + 1])
        return self.words[here], self.weights[here]

    def times(self, table: Floats, chosen: NDArray[np.int64]) -> Floats:
        product = np.empty((len(chosen), table.shape[1]), np.float32)
        for place, number in enumerate(chosen):
            words, weights = self.row(number)
            np.dot(weights, table[words], out=product[place])
        return product

    def add_transposed(self, values: Floats, chosen: NDArray[np.int64], into: Floats, at: Numbers) -> None:
        """Add the transposed rows times `values` to rows `at[word]` of `into`."""
        for place, number in enumerate(chosen):
            words, weights = self.row(number)
            into[at[words]] += weights[:, None] * values[place]


@dataclass(frozen=True)
class Trained:
    """`words` are sorted; a row of the table is a row of `vectors` times its scale."""

    words: list[str]
    vectors: NDArray[np.int8]
    scales: Floats
    pairs: int


def train(corpus: Corpus, report: Callable[[str], None]) -> Trained:
    words, renumbered, windows, frequencies = _vocabulary(corpus)
    report(f"{len(words)} words")
    questions = _texts(corpus.questions, corpus.question_ends, renumbered, lambda counts: np.ones_like(counts))
    answers = _texts(corpus.answers, corpus.answer_ends, renumbered, np.log1p)
    usable = _usable(questions, answers)
    report(f"{len(usable)} pairs")
    if len(usable) < _FEWEST_PAIRS:
        raise SystemExit("Too few pairs to train a table.")
    table = _start(windows, frequencies, len(words))
    report("start")
    _contrast(table, questions, answers, usable, report)
    scales = np.abs(table).max(axis=1) / 127
    scales[scales == 0] = 1
    vectors = np.rint(table / scales[:, None]).astype(np.int8)
    return Trained(words, vectors, scales.astype(np.float32), len(usable))


def _vocabulary(corpus: Corpus) -> tuple[list[str], Numbers, Texts, NDArray[np.float64]]:
    """The words, the new number of each word of the corpus or -1, windows of these words, and shares of all words."""
    everything = np.frombuffer(corpus.windows, np.int32)
    counts = np.bincount(everything, minlength=len(corpus.numbers))
    raw = _texts(corpus.windows, corpus.window_ends, np.arange(len(corpus.numbers), dtype=np.int32), np.log1p)
    in_windows = np.bincount(raw.words, minlength=len(corpus.numbers))
    frequent = [
        (-corpus.packages[number], -int(in_windows[number]), stem)
        for stem, number in corpus.numbers.items()
        if corpus.packages[number] >= FEWEST_PACKAGES and in_windows[number] >= FEWEST_WINDOWS
    ]
    kept = sorted(stem for *_, stem in sorted(frequent)[:MOST_WORDS])
    old = np.array([corpus.numbers[stem] for stem in kept])
    renumbered = np.full(len(corpus.numbers), -1, np.int32)
    renumbered[old] = np.arange(len(kept))
    windows = _texts(corpus.windows, corpus.window_ends, renumbered, np.log1p)
    return kept, renumbered, windows, counts[old] / len(everything)


def _texts(numbers: object, ends: object, renumbered: Numbers, weigh: Callable[[Floats], Floats]) -> Texts:
    flat = renumbered[np.frombuffer(numbers, np.int32)]  # type: ignore[call-overload]
    stops = np.frombuffer(ends, np.int64)  # type: ignore[call-overload]
    rows = np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0))
    known = flat >= 0
    size = int(renumbered.max()) + 1
    keys, counts = np.unique(rows[known] * size + flat[known], return_counts=True)
    starts = np.searchsorted(keys, np.arange(len(stops) + 1) * size)
    return Texts((keys % size).astype(np.int32), weigh(counts.astype(np.float32)), starts)


def _usable(questions: Texts, answers: Texts) -> NDArray[np.int64]:
    """Pairs with enough known words; of equal questions (boilerplate) the first."""
    seen: set[bytes] = set()
    usable = []
    for number in range(len(questions)):
        question = questions.row(number)[0]
        if len(question) >= 2 and len(answers.row(number)[0]) >= 6 and (key := question.tobytes()) not in seen:
            seen.add(key)
            usable.append(number)
    return np.array(usable, np.int64)


def _start(windows: Texts, frequencies: NDArray[np.float64], size: int) -> Floats:
    random = np.random.default_rng(1)
    chosen = np.sort(random.choice(len(windows), min(_START_WINDOWS, len(windows)), replace=False))
    in_windows = np.bincount(windows.words, minlength=size)
    idf = np.log(len(windows) / (in_windows + 1)).astype(np.float32)
    weighted = Texts(windows.words, windows.weights * idf[windows.words], windows.starts)
    lengths = np.array([np.linalg.norm(weighted.row(number)[1]) for number in chosen], np.float32)
    scaled = np.reciprocal(np.maximum(lengths, np.float32(1e-6)))[:, None]
    every = np.arange(size, dtype=np.int32)
    basis = random.standard_normal((size, min(DIMENSIONS + _EXTRA, size))).astype(np.float32)
    for _ in range(_START_PASSES):
        product = np.zeros_like(basis)
        seen: Floats = weighted.times(basis, chosen) * scaled
        weighted.add_transposed(seen * scaled, chosen, product, every)
        basis = np.linalg.qr(product)[0].astype(np.float32)
    seen = weighted.times(basis, chosen) * scaled
    left, values, _ = np.linalg.svd(seen.T @ seen)
    rows = (basis @ left[:, :DIMENSIONS]) * values[:DIMENSIONS] ** 0.25
    table = np.zeros((size, DIMENSIONS), np.float32)
    table[:, : rows.shape[1]] = _unit(rows) * (_FREQUENT / (_FREQUENT + frequencies))[:, None]
    table /= np.linalg.norm(table, axis=1).mean()
    return table


def _contrast(
    table: Floats, questions: Texts, answers: Texts, usable: NDArray[np.int64], report: Callable[[str], None]
) -> None:
    random = np.random.default_rng(0)
    held_out = random.permutation(usable)[: min(_HELD_OUT, len(usable) // 10)]
    pairs = np.setdiff1d(usable, held_out)
    block = min(NEIGHBOURS, len(pairs))
    batch = min(BATCH, len(pairs) // block * block)
    squares = np.full(len(table), 1e-10, np.float32)
    at = np.zeros(len(table), np.int32)
    steps, step = EPOCHS * (len(pairs) // block * block // batch), 0
    for epoch in range(EPOCHS):
        blocks = pairs[: len(pairs) // block * block].reshape(-1, block)
        order = blocks[random.permutation(len(blocks))].ravel()
        losses = []
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch]
            loss, by_question, by_answer = _gradients(questions.times(table, chosen), answers.times(table, chosen))
            losses.append(loss)
            touched = np.unique(
                np.concatenate([texts.row(number)[0] for texts in (questions, answers) for number in chosen])
            )
            at[touched] = np.arange(len(touched))
            gradient = np.zeros((len(touched), DIMENSIONS), np.float32)
            questions.add_transposed(by_question, chosen, gradient, at)
            answers.add_transposed(by_answer, chosen, gradient, at)
            squares[touched] += (gradient * gradient).mean(axis=1)
            rate = np.float32(RATE * (1 - step / steps))
            table[touched] -= rate * gradient / (np.sqrt(squares[touched])[:, None] + np.float32(1e-9))
            step += 1
        similar = _unit(questions.times(table, held_out)) @ _unit(answers.times(table, held_out)).T
        ranks = (similar > similar.diagonal()[:, None]).sum(axis=1) + 1
        report(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, MRR of held-out pairs {np.mean(1 / ranks):.3f}")


def _gradients(question_sums: Floats, answer_sums: Floats) -> tuple[float, Floats, Floats]:
    """The loss, and its gradients by the sums: each question among the answers of the batch, and the reverse."""
    count = len(question_sums)
    question_lengths = np.linalg.norm(question_sums, axis=1, keepdims=True) + np.float32(1e-6)
    answer_lengths = np.linalg.norm(answer_sums, axis=1, keepdims=True) + np.float32(1e-6)
    asked, answered = question_sums / question_lengths, answer_sums / answer_lengths
    logits = np.float32(SCALE) * (asked @ answered.T)
    by_row = np.exp(logits - logits.max(axis=1, keepdims=True))
    by_row /= by_row.sum(axis=1, keepdims=True)
    by_column = np.exp(logits - logits.max(axis=0, keepdims=True))
    by_column /= by_column.sum(axis=0, keepdims=True)
    loss = float(-np.log(by_row.diagonal() + 1e-9).mean())
    slope = (by_row + by_column) / 2
    slope[np.arange(count), np.arange(count)] -= 1
    slope *= np.float32(SCALE / count)
    for_questions, for_answers = slope @ answered, slope.T @ asked
    for_questions -= asked * (for_questions * asked).sum(axis=1, keepdims=True)
    for_answers -= answered * (for_answers * answered).sum(axis=1, keepdims=True)
    return loss, for_questions / question_lengths, for_answers / answer_lengths


def _unit(rows: Floats) -> Floats:
    unit: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-9))
    return unit
