"""Whatever the settings say, a run can be ended."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reposync.content.secret_policy import OFF
from reposync.sources.local import LocalGitSource
from reposync.sources.port import LocalGit
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncSettings, read_target
from tests.fixtures.repositories import GitRepository


async def test_a_run_is_cancelled_in_the_middle_of_slow_patterns(tmp_path: Path):
    """All paths take many minutes. The only thread that there is shows that it is free again."""
    repository = GitRepository.create(tmp_path / "slow.git")
    repository.commit({"a/" * 2000 + f"a{number}": b"x" for number in range(3000)})
    slow = (f"**/{'*a*/' * 245}b/**/c",) * 50
    settings = SyncSettings(str(repository.path), None, None, (), slow, ContentSettings(400, 80, 1000), OFF)
    with ThreadPoolExecutor(1) as alone:
        asyncio.get_running_loop().set_default_executor(alone)
        source = LocalGitSource(LocalGit(repository.path))
        planning = asyncio.create_task(read_target(source, settings, await source.head(), {}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(planning, 3)

        await asyncio.to_thread(time.monotonic)
        await source.close()
