"""An OpenAI-compatible embedding server for a folder with a transformer, as `provider: onnx` reads it: to measure what
a server costs without one.

python -m benchmarks.model_server FOLDER [--port 8081] [--threads 2]

It adds no prefix. A text that is longer than the model reads is refused, as a server should.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import uvicorn
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from reposync.embedding.local_model import load_folder
from reposync.embedding.onnx_folder import read_folder


def application(folder: Path, threads: int) -> Starlette:
    found = read_folder(folder)
    model, at_once = load_folder(found), CapacityLimiter(threads)
    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    async def embeddings(request: Request) -> JSONResponse:
        texts: list[str] = (await request.json())["input"]
        tokens = [len(each.ids) for each in tokenizer.encode_batch(texts)]
        if max(tokens) > found.most_tokens:
            message = f"This model's maximum context length is {found.most_tokens} tokens; an input has {max(tokens)}."
            return JSONResponse({"error": {"message": message, "code": "context_length_exceeded"}}, 400)
        rows = [await run_sync(model.vector, text, limiter=at_once) for text in texts]
        return JSONResponse(_answer(folder.name, (row.tolist() for row in rows), sum(tokens)))

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": folder.name, "object": "model"}]})

    return Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/v1/models", models)])


def _answer(name: str, rows: Iterable[list[float]], tokens: int) -> dict[str, Any]:
    vectors = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": name, "data": vectors, "usage": usage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    uvicorn.run(application(options.folder, options.threads), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
