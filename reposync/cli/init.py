"""`reposync init`: from a GitLab address and a token to a registry file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from reposync.cli import glab
from reposync.cli.commands import interrupt_on_sigterm
from reposync.cli.new_registry import ENVIRONMENT_NAME, SERVER, NewRegistry, is_in_git
from reposync.cli.output import Code, Line, Result, note, prints
from reposync.errors import ConflictError, RepoSyncError, SourceDenied, SourceGone, SourceUnavailable, UsageError
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.gitlab_account import Account, GitLabAccount, Place
    from reposync.config.gitlab_instance import GitLabInstance

T = TypeVar("T")

URL_VARIABLE, TOKEN_VARIABLE = "GITLAB_URL", "GITLAB_TOKEN"
PUBLIC_GITLAB = "https://gitlab.com"
_ATTEMPTS = 3
_WANTED = "scopes read_api and read_repository"


class Token(NamedTuple):
    """`variable`: in which processes find it; `secret`: what the file of variables sets, a variable and its value, None
    without a token; `origin`: for messages; `is_typed`: a person can correct it."""

    text: str
    variable: str
    secret: tuple[str, str] | None
    origin: str
    is_typed: bool = False


@click.command()
@click.option("--gitlab-url", metavar="URL", help=f"Address of GitLab. Default: {URL_VARIABLE}, then a question.")
@click.option(
    "--token-env",
    metavar="NAME",
    help=f"Variable with the token. Default: {TOKEN_VARIABLE}, glab, then a question.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file with the token; it is referred to, not copied.",
)
@click.option(
    "--project", "projects", metavar="PATH", multiple=True, help="Register this project. May be repeated, as --group."
)
@click.option("--group", "groups", metavar="PATH", multiple=True, help="Register all projects of this group.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("repositories.yaml"),
    show_default=True,
    help=f"The registry file. {ENVIRONMENT_NAME} is written beside it.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@prints
def init(
    gitlab_url: str | None,
    token_env: str | None,
    token_file: Path | None,
    projects: tuple[str, ...],
    groups: tuple[str, ...],
    output: Path,
    force: bool,
) -> Result:
    """Register projects of a GitLab server: write repositories.yaml, and a file with the token for its environment.

    Asks for the address, a token and the projects, and tests each. Nothing is asked for what the options or the
    environment say, so that scripts can use it. Nothing is written before the last answer.
    """
    interrupt_on_sigterm()
    if token_env and token_file:
        raise click.UsageError("--token-env and --token-file name two tokens: leave one of them out.")
    path = output.expanduser().absolute()
    _require_free(path, force=force)
    with _Server.opened() as server:
        account = _sign_in(server, gitlab_url, token_env, token_file)
        chosen = [server.get("project", each) for each in projects] + [server.get("group", each) for each in groups]
        if not chosen:
            chosen = _choose(server)
        new = NewRegistry(
            path,
            server.instance.url,
            server.token.variable,
            server.token.secret,
            projects=[each.path for each in chosen if each.kind == "project"],
            groups=[each.path for each in chosen if each.kind == "group"],
        )
    new.write()
    return Result(_document(new, account), list(_told(new)))


# The server ----------------------------------------------------------------------------------------------------------


class _Server:
    """The GitLab server of the dialogue, and its connection."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._opened = contextlib.AsyncExitStack()
        self._account: GitLabAccount | None = None
        self.instance: GitLabInstance
        self.token: Token

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[_Server]:
        with asyncio.Runner() as runner:
            server = cls(runner)
            try:
                yield server
            finally:
                runner.run(server._opened.aclose())

    @property
    def account(self) -> GitLabAccount:
        assert self._account is not None  # noqa: S101 - for the type checker
        return self._account

    def connect(self, url: str, token: Token) -> Account:
        """What GitLab says about the token. Raises UsageError for what is no address or no token, SourceError."""
        from pydantic import SecretStr, ValidationError

        from reposync.app.gitlab_account import GitLabAccount
        from reposync.config.gitlab_instance import GitLabInstance
        from reposync.config.loading import sentences

        values = {"name": SERVER, "url": url, "token": SecretStr(token.text) if token.text else None}
        try:
            self.instance, self.token = GitLabInstance.model_validate(values), token
        except ValidationError as error:
            raise UsageError("; ".join(sentences(error, within=("gitlab", 0)))) from None

        async def look() -> Account:
            await self._opened.aclose()
            self._account = await self._opened.enter_async_context(GitLabAccount.of(self.instance))
            return await self._account.look()

        return self._answer(look())

    def get(self, kind: Literal["project", "group"], path: str) -> Place:
        from reposync.app.gitlab_account import Place

        return self._answer(self.account.get(Place(kind, path.strip("/"))))

    def find(self, words: str) -> tuple[list[Place], bool]:
        return self._answer(self.account.find(words))

    def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        """Raises SourceError, with what a person can do who waits: there is no index yet, and no next run."""
        try:
            return self._runner.run(asking)
        except SourceUnavailable as error:
            error.remedy = "Check the address, and that this machine reaches it."
            raise
        except SourceGone as error:
            error.remedy = "Check the path, and that the token's user is a member."
            raise


def _sign_in(server: _Server, gitlab_url: str | None, token_env: str | None, token_file: Path | None) -> Account:
    """Connect with what is given; a person is asked for the rest, and again if they mistyped."""
    url = gitlab_url or os.environ.get(URL_VARIABLE, "").strip()
    is_url_typed = not url
    for attempt in range(1, _ATTEMPTS + 1):
        address = url or _ask("--gitlab-url", "GitLab address", _usual_url())
        address = address if "://" in address else f"https://{address}"
        token = _given_token(address, token_env, token_file) or _typed_token(address, is_first=attempt == 1)
        try:
            account = server.connect(address, token)
            if missing := account.missing_scopes:
                raise SourceDenied(
                    f"The token lacks {' and '.join(missing)}.",
                    remedy=f"Make one with the {_WANTED}: {_page_of_tokens(address)}",
                )
        except RepoSyncError as error:
            can_correct = token.is_typed if isinstance(error, SourceDenied) else is_url_typed or token.is_typed
            if not can_correct or attempt == _ATTEMPTS or not sys.stdin.isatty():
                raise
            _say(f"error: {error.message}")
            if error.remedy:
                _say(f"  {error.remedy}")
            # The address was right if GitLab judged the token.
            url = address if isinstance(error, SourceDenied) else url
        else:
            _say(f"{account.words()}{f' (token: {token.origin})' if token.text and not token.is_typed else ''}")
            return account
    raise AssertionError("the last attempt returns or raises")


def _given_token(url: str, token_env: str | None, token_file: Path | None) -> Token | None:
    """That of an option, of the environment or of `glab`. Raises UsageError."""
    if token_file is not None:
        try:
            text = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file: {token_file} cannot be read: {error}.") from None
        if not text:
            raise UsageError(f"--token-file: {token_file} is empty.")
        place = str(token_file.expanduser().absolute())
        return Token(text, TOKEN_VARIABLE, (f"{TOKEN_VARIABLE}_FILE", place), str(token_file))
    name = token_env or TOKEN_VARIABLE
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError("--token-env must be the name of a variable, not a token.")
    if text := os.environ.get(name, "").strip():
        return Token(text, name, (name, text), name)
    if token_env:
        raise UsageError(f"--token-env: the variable {name} is not set.")
    if text := glab.token_of(url) or "":
        return Token(text, TOKEN_VARIABLE, (TOKEN_VARIABLE, text), "glab")
    return None


def _typed_token(url: str, *, is_first: bool) -> Token:
    page = _page_of_tokens(url)
    if is_first and sys.stdin.isatty():
        _say(f"Make a token with the {_WANTED}: {page}")
        _say("(Enter alone: public projects only.)")
    text = _ask("--token-env or --token-file", "Access token (not shown)", is_hidden=True)
    return Token(text, TOKEN_VARIABLE, (TOKEN_VARIABLE, text) if text else None, "typed", is_typed=True)


def _page_of_tokens(url: str) -> str:
    return f"{url.rstrip('/')}/-/user_settings/personal_access_tokens"


def _usual_url() -> str:
    host = glab.default_host()
    return f"https://{host}" if host else PUBLIC_GITLAB


def _ask(option: str, question: str, default: str = "", *, is_hidden: bool = False) -> str:
    """Raises UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is no terminal for a question. Give {option}.")
    shows = bool(default)
    return str(click.prompt(question, default=default, show_default=shows, hide_input=is_hidden, err=True)).strip()


# Projects and groups -------------------------------------------------------------------------------------------------


def _choose(server: _Server) -> list[Place]:
    """What a person chooses from what the token sees: at least one."""
    chosen: list[Place] = []
    shown: list[Place] = []
    _say("Which projects and groups? Type a part of a name; Enter alone lists the latest.")
    while True:
        question = "Numbers, or a name" if shown else "Name"
        question += ", or Enter to finish" if chosen else ""
        words = _ask("--project or --group", question)
        if not words and chosen:
            return chosen
        try:
            numbers = _numbers(words, len(shown))
            if numbers is None:
                shown = _list(server, words)
                continue
        except RepoSyncError as error:
            _say(f"error: {error}")
            continue
        chosen += [each for each in (shown[number - 1] for number in numbers) if each not in chosen]
        _say(f"Chosen: {', '.join(each.path for each in chosen)}")


def _list(server: _Server, words: str) -> list[Place]:
    found, has_more = server.find(words)
    if not found and "/" in words:  # a public project of others
        found = [server.get("project", words)]
    for number, place in enumerate(found, 1):
        _say(f"{number:>4}  {place.kind:<8} {place.path}")
    if has_more:
        _say("      more match: type a longer part of the name")
    if not found:
        _say("Nothing matches. A project of others is found by its whole path.")
    return found


def _numbers(words: str, most: int) -> list[int] | None:
    """`1 3-5`; None for what is a name. Raises UsageError for a number that is not in the list."""
    parts = re.split(r"[\s,]+", words) if words else []
    if not most or not parts or not all(re.fullmatch(r"\d{1,4}(-\d{1,4})?", part) for part in parts):
        return None
    numbers: list[int] = []
    for part in parts:
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    if any(not 1 <= number <= most for number in numbers):
        raise UsageError(f"The list has the numbers 1 to {most}.")
    return numbers


# The files -----------------------------------------------------------------------------------------------------------


def _require_free(path: Path, *, force: bool) -> None:
    """Raises ConflictError if a file exists and nobody says that it may be replaced."""
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent}.")
    existing = [each for each in (path, path.with_name(ENVIRONMENT_NAME)) if each.exists()]
    if not existing or force:
        return
    names = " and ".join(each.name for each in existing)
    verb = "exists" if len(existing) == 1 else "exist"
    if not sys.stdin.isatty():
        raise ConflictError(
            f"{names} {verb} in {path.parent}.", remedy="Replace with --force, or name a file by --output."
        )
    click.confirm(f"{names} {verb} in {path.parent}. Replace?", abort=True, err=True)


def _document(new: NewRegistry, account: Account) -> dict[str, object]:
    return {
        "registry": str(new.path),
        "environment": str(new.environment_path),
        "gitlab": {
            "url": new.url,
            "version": account.version,
            "user": account.user,
            "scopes": None if account.scopes is None else sorted(account.scopes),
            "expires_on": account.last_day,
        },
        "repositories": list(new.names),
        "groups": list(new.groups),
    }


def _told(new: NewRegistry) -> Iterator[Line]:
    yield f"Wrote {_short(new.path)} and {_short(new.environment_path)}, which only you can read."
    if is_in_git(new.path) and new.secret is not None:
        yield f"{ENVIRONMENT_NAME} holds a secret: add it to .gitignore."
    yield ""
    yield "Next:"
    yield Code(f"  set -a; . {shlex.quote(_sourced(new.environment_path))}; set +a")
    yield Code("  reposync apply")
    yield Code("  reposync sync")
    yield Code('  reposync search "where are expired sessions removed"')
    yield ""
    yield "`reposync serve` keeps them current from then on."


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _sourced(path: Path) -> str:
    """The shell looks for a name without a slash in PATH."""
    short = _short(path)
    return short if "/" in short else f"./{short}"


def _say(text: str) -> None:
    note(escape_unprintable(text), hang=0)
