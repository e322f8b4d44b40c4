"""What servers answer, and what a hostile one may."""

from __future__ import annotations

import base64

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.dialects import DIALECTS, Dialect, MalformedResponse

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "embedding", "embeddings", "index", "usage", "prompt_tokens"]) | st.text(),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
VECTORS = SCALARS | st.lists(SCALARS, max_size=3) | st.lists(st.lists(SCALARS, max_size=3), max_size=3)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(
    st.binary(max_size=30)
    | (
        JSON
        | VECTORS
        | st.builds(lambda v: {"embeddings": v}, VECTORS)
        | st.builds(lambda v: {"data": [{"embedding": v}]}, VECTORS)
    ).map(orjson.dumps)
)
def test_any_answer_is_vectors_or_malformed(dialect: Dialect, body: bytes) -> None:
    try:
        vectors, _ = dialect.answer(body)
    except MalformedResponse:
        return
    assert (vectors.ndim, vectors.dtype) == (2, np.float32)


def test_base64_and_numbers_are_the_same_vectors() -> None:
    rows = np.array([[1, -2.5], [0.25, 3]], "<f4")
    packed = [{"index": n, "embedding": base64.b64encode(row.tobytes()).decode()} for n, row in enumerate(rows)]
    plain = [{"index": n, "embedding": row.tolist()} for n, row in enumerate(rows)]
    for items in (packed, plain, packed[::-1]):
        assert np.array_equal(DIALECTS["openai"].answer(orjson.dumps({"data": items}))[0], rows)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", "http://h:1/v1/embeddings"),
        ("http://h/v1", "http://h/v1/embeddings"),
        ("https://h/proxy/v1", "https://h/proxy/v1/embeddings"),
        ("https://h/v1/embeddings", "https://h/v1/embeddings"),
    ],
)
def test_an_address_may_be_given_with_and_without_its_path(url: str, expected: str) -> None:
    assert DIALECTS["openai"].address(url) == expected
