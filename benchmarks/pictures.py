"""The pictures of the documentation, made anew from the real program: `make pictures`.

    python -m benchmarks.pictures [--only terminal|pages] [--folder docs/images]

terminal.svg is what `reposync sync`, `search` and `history` print on a terminal, with the model of the package;
commands-*.svg is what commands about several repositories print on terminals of 80 and 120 columns, dark and light.
The others are the pages in Chromium, each in both themes, of a daemon that keeps repositories made of the sources of
installed packages, with real commits, a move of everything, one that is blocked and one that is being synced.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx
from playwright.sync_api import Page, ViewportSize, sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from reposync.config.database_url import sqlite_url
from tests.fixtures.browser import SWITCHES, program
from tests.fixtures.embedding_server import MODEL, EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import Content, GitRepository
from tests.fixtures.supervised import free_port

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
COLUMNS = 116
_SYNC_SECONDS = 300.0
"""At most, also on a busy machine."""
COMMANDS = (
    ("sync", "."),
    ("search", "where is a session cookie signed and written", "--limit", "2"),
    ("history",),
)
SIZE: ViewportSize = {"width": 1200, "height": 560}
TOKEN, GITLAB_TOKEN = "operate-pictures-of-the-pages", "glpat-reader-of-everything"
DARK = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)
LIGHT = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [
        (110, 119, 129),
        (207, 34, 46),
        (17, 99, 41),
        (125, 78, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("terminal", "pages"))
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures", ignore_cleanup_errors=True) as name:
        if options.only != "pages":
            (options.folder / "terminal.svg").write_text(terminal(Path(name) / "terminal"))
            for picture_name, svg in commands(Path(name) / "commands"):
                (options.folder / f"{picture_name}.svg").write_text(svg)
        if options.only != "terminal":
            pages(Path(name) / "pages", options.folder)


def sources(package: str, *, most: int = 400) -> dict[str, Content]:
    """The package's own Python files, by their path in it."""
    files = sorted((PACKAGES / package).rglob("*.py"))[:most]
    return {path.relative_to(PACKAGES).as_posix(): path.read_bytes() for path in files if path.stat().st_size}


# The terminal --------------------------------------------------------------------------------------------------------


def terminal(folder: Path) -> str:
    folder.mkdir()
    repository = GitRepository.create(folder / "starlette.git")
    repository.commit(sources("starlette"), message="Starlette")
    place = repository.clone(folder / "starlette")
    variables = variables_of(folder)
    try:
        return picture([(words, on_a_terminal(words, variables, place, COLUMNS)) for words in COMMANDS], COLUMNS, DARK)
    finally:
        end_engines(folder)


def commands(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and pictures of commands about several repositories, one of which is blocked and one is gone, on a narrow
    and on a wide terminal, dark and light."""
    folder.mkdir()
    variables = variables_of(folder)
    names = ("platform/web/starlette", "platform/clients/asynchronous-http-client", "tools/click", "handbook")
    packages = ("starlette", "httpx", "click", "uvicorn")
    repositories = [GitRepository.create(folder / f"{package}.git") for package in packages]
    entries = [
        f"- {{name: {name}, path: {folder / package}.git, schedule: every 6 hours}}"
        for name, package in zip(names, packages, strict=True)
    ]
    (folder / "repositories.yaml").write_text("\n".join(["repositories:", *entries]) + "\n")
    variables["REPOSYNC_CONFIG"] = str(folder / "repositories.yaml")
    for repository, package in zip(repositories, packages, strict=True):
        repository.commit(sources(package), message=package)
    try:
        for words in (("apply",), ("sync",)):
            on_a_terminal(words, variables, folder, COLUMNS)
        repositories[0].commit({"starlette/added.py": b"ADDED = True\n"}, message="One more")
        repositories[1].commit({"README.md": b"# Moved\n"}, message="Moved elsewhere", replace=True)
        (folder / "uvicorn.git").rename(folder / "elsewhere")
        on_a_terminal(("sync",), variables, folder, COLUMNS, exit_code=1)
        listed = json.loads(on_a_terminal(("history", "--status", "blocked", "--json"), variables, folder, COLUMNS))
        run = listed["items"][0]["id"][:8]
        for columns in (80, 120):
            shown = [
                (words, on_a_terminal(words, variables, folder, columns))
                for words in (
                    ("repos", "list"),
                    ("history", "--limit", "6"),
                    ("runs", "show", run),
                    ("search", "where is a session cookie signed", "--limit", "2"),
                    ("grep", r"def \w+_cookie\(", "--limit", "4"),
                )
            ]
            for theme, colors in (("dark", DARK), ("light", LIGHT)):
                yield f"commands-{columns}-{theme}", picture(shown, columns, colors)
    finally:
        end_engines(folder)


def variables_of(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "REPOSYNC_STATE_DIR": str(folder / "state"),
        "REPOSYNC_ENGINE_IDLE_SECONDS": "30",
        "POD_NAME": "laptop",
    }


def picture(shown: Sequence[tuple[Sequence[str], str]], columns: int, theme: TerminalTheme) -> str:
    """Commands with what they print."""
    text = Text()
    for words, printed in shown:
        typed = " ".join(f'"{word}"' if " " in word else word for word in words)
        text.append("$ ", "bold green").append(f"reposync {typed}\n", "bold")
        text.append(Text.from_ansi(printed)).append("\n")
    console = Console(record=True, width=columns, file=io.StringIO(), highlight=False)
    console.print(text)
    # Rich's frame loads a font from somebody else's server; any fixed one will do.
    frame = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    frame = frame.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    return console.export_svg(title="reposync", theme=theme, code_format=frame, unique_id="reposync") + "\n"


def on_a_terminal(
    words: Sequence[str], variables: dict[str, str], place: Path, columns: int, exit_code: int = 0
) -> str:
    """What it prints to one of that width. The bar, which moves, goes elsewhere."""
    ours, its_side = pty.openpty()
    fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "reposync", *words],
        env=variables,
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=its_side,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_side)
    printed = b""
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65_536):
            printed += piece
    os.close(ours)
    if process.wait() != exit_code:
        raise SystemExit(f"reposync {' '.join(words)}: exit code {process.returncode}\n{printed.decode()}")
    return printed.decode().replace("\r\n", "\n")


# The pages -----------------------------------------------------------------------------------------------------------


def pages(folder: Path, images: Path) -> None:
    path = program()
    if path is None:
        raise SystemExit("no Chromium: `make browser` installs it, and TEST_BROWSER names a different one")
    with (
        EmbeddingServer() as embeddings,
        GitLabServer() as gitlab,
        served(folder, embeddings, gitlab) as pod,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
        shown = {
            scheme: browser.new_page(viewport=SIZE, color_scheme=scheme, timezone_id="UTC", locale="en-GB")
            for scheme in ("light", "dark")
        }

        def take(name: str, address: str) -> None:
            for scheme, page in shown.items():
                page.goto(f"{pod.url}{address}")
                page.wait_for_load_state("load")
                page.screenshot(path=images / f"{name}-{scheme}.png")

        take("login", "/login")
        for page in shown.values():
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_role("button", name="Log in").click()
        with api(pod) as client:
            for name, address in addresses(client).items():
                take(name, address)
            with running(client, embeddings) as run:
                take("run-running", f"/runs/{run}")
                take("workers", "/workers")
        for scheme in shown:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, timezone_id="UTC", locale="en-GB")
            take_people(page, f"http://localhost:{urlsplit(str(pod.url)).port}", images, scheme)
        browser.close()


def take_people(page: Page, url: str, images: Path, scheme: str) -> None:
    """What a person sees who signs in at GitLab, makes a token, and connects an agent."""

    def take(name: str) -> None:
        page.screenshot(path=images / f"{name}-{scheme}.png")

    page.goto(f"{url}/login?next=/access")
    take("sign-in")
    page.get_by_role("link", name="Sign in with GitLab").click()
    page.locator("#count").wait_for()
    take("your-access")
    page.goto(f"{url}/access/tokens")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make a token").click()
    page.locator("#secret").wait_for()
    take("access-tokens")
    agent = {"client_name": "Claude Code", "redirect_uris": ["http://localhost:51234/callback"]}
    client_id = httpx.post(f"{url}/register", json=agent).raise_for_status().json()["client_id"]
    query = {"client_id": client_id, "response_type": "code", "code_challenge": "A" * 43}
    page.goto(f"{url}/authorize?{urlencode(query)}")
    page.get_by_role("button", name="Allow").wait_for()
    take("let-an-agent-in")


def addresses(client: httpx.Client) -> dict[str, str]:
    """Of the pages of the daemon that `served` has, by the names of their pictures."""
    blocked = client.get("/api/v1/runs?status=blocked").raise_for_status().json()["items"][0]["id"]
    return {
        "repositories": "/",
        "repository": "/repositories/platform/httpx",
        "runs": "/runs",
        "run-blocked": f"/runs/{blocked}",
        "search": "/search?q=where+is+a+session+cookie+signed+and+written",
        "file": "/files/platform/starlette/-/starlette/middleware/sessions.py?lines=63-72#L63",
        "help": "/help",
        "api": "/docs",
    }


def api(pod: Pod) -> httpx.Client:
    return httpx.Client(base_url=str(pod.url), headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)


@contextlib.contextmanager
def running(client: httpx.Client, embeddings: EmbeddingServer) -> Iterator[str]:
    """Id of a run that has embedded a part of its chunks, and waits for the others."""
    run = client.post("/api/v1/repositories/platform/sqlalchemy/sync", json={"full": True}).raise_for_status().json()

    def has_begun() -> bool:
        progress = client.get(f"/api/v1/runs/{run['id']}").raise_for_status().json()["progress"] or {}
        return int(progress.get("chunks_embedded", 0)) > 0

    until(has_begun)
    with embeddings.holding():
        yield run["id"]


@contextlib.contextmanager
def served(folder: Path, embeddings: EmbeddingServer, gitlab: GitLabServer) -> Iterator[Pod]:
    """A daemon that has synced several commits of several repositories, the last ones by a click."""
    folder.mkdir()
    names = ("starlette", "httpx", "click", "uvicorn", "sqlalchemy")
    repositories = {name: GitRepository.create(folder / f"{name}.git") for name in names}
    lines = [
        f"embedding: {{provider: openai, url: '{embeddings.url}', model: '{MODEL}', dimensions: 64}}",
        f"gitlab: [{{name: main, url: '{gitlab.url}', token: \"${{GITLAB_TOKEN}}\"}}]",
        "repositories:",
        *(
            f"  - {{name: platform/{name}, gitlab: main, project: platform/{name}, schedule: every 30 minutes}}"
            for name in names
        ),
    ]
    port = free_port()
    application = gitlab.oauth.add_application(f"http://localhost:{port}/sign-in/callback")
    gitlab.oauth.signed_in = ada = gitlab.rights.add_user("ada")
    lines.append(
        f"http: {{access: gitlab, gitlab: main, public_url: 'http://localhost:{port}', sign_in: "
        f'{{client_id: {application.id}, client_secret: "${{GITLAB_SIGN_IN_SECRET}}"}}}}'
    )
    gitlab.add_token(GITLAB_TOKEN, scopes=("read_api", "read_repository"))
    contents = {name: sources(name) for name in names}
    for name, repository in repositories.items():
        repository.commit(dict(list(contents[name].items())[:-3]), message="What there was")
        project = gitlab.add_project(f"platform/{name}", repository.path)
        if level := {"starlette": 40, "httpx": 30, "click": 20}.get(name):
            project.members[ada.id] = level
    (folder / "repositories.yaml").write_text("\n".join(lines) + "\n")
    log = ExecutionLog(sqlite_url(folder / "state" / "reposync.db"))
    secrets = {
        "REPOSYNC_API_TOKEN": f"operate:{TOKEN}",
        "GITLAB_TOKEN": GITLAB_TOKEN,
        "GITLAB_SIGN_IN_SECRET": application.secret,
    }
    with Pod("laptop", folder, secrets, ("--port", str(port))) as pod, api(pod) as client:

        def syncs(name: str, status: str = "completed") -> None:
            before = len(log.ended(f"platform/{name}", status))
            client.post(f"/api/v1/repositories/platform/{name}/sync").raise_for_status()
            until(
                lambda: len(log.ended(f"platform/{name}", status)) > before,
                timeout_seconds=_SYNC_SECONDS,
                details=pod.log_tail,
            )

        until(
            lambda: all(log.ended(f"platform/{name}") for name in names),
            timeout_seconds=_SYNC_SECONDS,
            details=pod.log_tail,
        )
        for name in names:
            repositories[name].commit(dict(list(contents[name].items())[-3:]), message="Three more")
            syncs(name)
        moved = {f"src/{path}": content for path, content in contents["httpx"].items()}
        repositories["httpx"].commit(moved, message="Move everything", replace=True)
        syncs("httpx")
        repositories["uvicorn"].commit({"README.md": b"# Moved\n"}, message="Moved elsewhere", replace=True)
        syncs("uvicorn", "blocked")
        syncs("starlette")
        yield pod


def end_engines(folder: Path) -> None:
    for record in folder.rglob("engine.json"):
        if pid := json.loads(record.read_text()).get("pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
