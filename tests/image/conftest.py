"""The image is built when its tests are asked for by name (`make test-image`): that takes minutes, root and Debian's
packages, which the rest of the suite does without."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.image.building import Image, built, missing

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in asked) else True


@pytest.fixture(scope="session")
def image() -> Generator[Image, None, None]:
    if reason := missing():
        pytest.skip(reason)
    with built(Path(tempfile.mkdtemp(prefix="reposync-image-"))) as image:
        yield image
