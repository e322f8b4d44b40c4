"""What the documentation says is so: its commands run, its snippets are accepted, its names and links exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from benchmarks.reference import ERRORS, description, errors, filled, filled_errors, metrics, remedies
from benchmarks.reference import PAGE as REFERENCE
from reposync import __version__
from reposync.config.settings import SECRET_VARIABLES
from tests.docs import program
from tests.docs.newcomer import NOT_RUN, RUN, programs_in, script_name
from tests.docs.pages import ROOT, Fence, Page, Span, pages
from tests.docs.shell import simple_commands, typed
from tests.docs.snippets import KINDS
from tests.docs.worlds import newcomer_to
from tests.fixtures.installation import INSTALL_SECONDS, run

HISTORY = "CHANGELOG.md"
# Their commands run in `make test`, those of all other pages in `make test-all`.
FIRST_PAGES = {"README.md"}
FENCES = {"console", "yaml", "json", "text", "mermaid", "dockerfile", "nginx", "ini", "promql", "python", "sql", ""}
# Names that are somebody else's.
OTHERS = {"DB_NAME", "CI_PROJECT_PATH", "CI_PIPELINE_ID", "CI_COMMIT_SHA"}  # an example; GitLab CI sets them
OTHER_OPTIONS = {
    "--volumes": "docker compose down",
    "--build-arg": "docker build",
    "--format": "podman build",
    "--scope": "claude mcp add",
    "--transport": "claude mcp add",
}
TOP = {path.name for path in ROOT.iterdir()} - {".git"}


def failures(found: Iterable[str]) -> None:
    """All at once, each with its place."""
    reported = list(found)
    assert not reported, "\n" + "\n".join(reported)


def reports_all(check: Callable[[], Iterator[str]]) -> Callable[[], None]:
    """A test that fails with everything that `check` yields."""

    def test() -> None:
        failures(check())

    return test


def snippets() -> list[Fence]:
    return [fence for page in pages() for fence in page.fences if fence.words[:1] == ("yaml",)]


def page_named(name: str) -> Page:
    (page,) = (each for each in pages() if each.name == name)
    return page


def current_pages() -> list[Page]:
    """All but the changelog, which names what other versions had."""
    return [page for page in pages() if page.name != HISTORY]


def code() -> Iterator[Span]:
    """What is set in code."""
    for page in current_pages():
        yield from page.words_in_code()


# Commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, warm_program: str) -> Path:
    if shutil.which("curl") is None:
        pytest.skip("the documentation's requests are typed as curl commands, and there is no curl here")
    return programs_in(tmp_path_factory.mktemp("programs") / "bin", warm_program)


def can_be_followed(page: Page) -> bool:
    lines = (command.line for fence in page.console for command in typed(fence))
    programs = {words[0] for line in lines for words in simple_commands(line)}
    return bool({"reposync", "curl"} & programs) or any(
        fence.words[:2] == ("python", "script") for fence in page.fences
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(page.name, marks=() if page.name in FIRST_PAGES else pytest.mark.full)
        for page in pages()
        if can_be_followed(page)
    ],
)
def test_a_page_can_be_followed_to_the_letter(
    name: str, programs: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    page = page_named(name)
    with newcomer_to(page, tmp_path, programs, request) as newcomer:
        for fence in page.fences:
            if fence.words == ("yaml",):
                newcomer.registers(fence.text)
            if fence.words == ("yaml", "questions"):
                newcomer.writes("questions.yaml", fence.text)
            if fence.words == ("python", "script"):
                newcomer.writes_script(fence.text)
            if fence.words == ("sql",):
                newcomer.queries(fence.text, fence.at)
            if fence.words == ("console",):
                for command in typed(fence):
                    newcomer.types(command)


@pytest.mark.full
def test_a_program_that_needs_packages_runs_with_these_alone(
    programs: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    """In an environment of its own, by pip from a registry: the packages are large, and nothing else needs them."""
    page = page_named("docs/ask-from-code.md")
    (script,) = (fence for fence in page.fences if fence.words[:2] == ("python", "script") and fence.words[2:])
    packages = " ".join(script.words[2:])
    assert f"pip install {packages}" in {command.line for fence in page.console for command in typed(fence)}
    run(sys.executable, "-m", "venv", os.fspath(tmp_path / "venv"))
    pip = (os.fspath(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    installed = subprocess.run([*pip, *script.words[2:]], capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if installed.returncode:
        pytest.skip(f"no registry has {packages}: {installed.stderr.strip().splitlines()[-1]}")
    with newcomer_to(page, tmp_path, programs, request) as newcomer:
        newcomer.writes_script(script.text)
        newcomer.run(f"export PATH={tmp_path / 'venv' / 'bin'}:$PATH API={newcomer.url}/api/v1")
        (command,) = (
            command
            for fence in page.console
            for command in typed(fence)
            if command.line.startswith(f"python {script_name(script.text)}")
        )
        newcomer.types(command)


@reports_all
def test_every_command_that_is_shown_exists() -> Iterator[str]:
    for page in current_pages():
        for command in (each for fence in page.console for each in typed(fence)):
            for words in simple_commands(command.line):
                if words[0] not in RUN | NOT_RUN:
                    yield f"{command.at}: {words[0]!r} is neither run by the tests nor known to be run elsewhere"
                if said := program.complaint(words, complete=True):
                    yield f"{command.at}: {said}"
        for span in page.spans:
            if said := inline_complaint(span.text):
                yield f"{span.at}: {said}"


def inline_complaint(text: str) -> str | None:
    """In a sentence, a command may be named by its beginning, or with several words in one place."""
    if not text.startswith("reposync "):
        return None
    text = re.sub(r"\{([^{}|]+)\|[^{}]*\}", r"\1", text)
    for words in simple_commands(re.sub(r"\|(?=\S)", "/", text)):
        for word in words[2].split("/") if "/" in "".join(words[2:3]) else words[2:3] or [""]:
            if said := program.complaint(list(filter(None, [*words[:2], word, *words[3:]])), complete=False):
                return said
    return None


@reports_all
def test_every_option_that_is_named_exists() -> Iterator[str]:
    """In sentences: those of whole commands were looked at with their commands."""
    text = program.text()
    for page in current_pages():
        # What is said of a command of others that the page shows.
        shown = " ".join(fence.text for fence in page.console)
        for span in (each for each in page.spans if each.text.split(" ")[0] not in NOT_RUN):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", span.text):
                is_known = option in program.options() | OTHER_OPTIONS.keys() or f'"{option}"' in text
                if not is_known and option not in shown.split():
                    yield f"{span.at}: no command has the option {option}"


@reports_all
def test_every_module_and_make_target_that_is_named_exists() -> Iterator[str]:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for span in code():
        for module, options in re.findall(r"python -m (benchmarks[\w.]*)([^`#]*)", span.text):
            path = ROOT / module.replace(".", "/")
            is_package = (path / "__main__.py").exists()
            if not is_package and not path.with_suffix(".py").exists():
                yield f"{span.at}: there is no module {module}"
            source = "".join(each.read_text() for each in (path if is_package else path.parent).glob("*.py"))
            for option in re.findall(r"--[a-z-]+", options):
                if f'"{option}"' not in source:
                    yield f"{span.at}: {module} has no option {option}"
        for target in re.findall(r"^(?:\$ )?make ([a-z][\w-]*)", span.text):
            if target not in targets:
                yield f"{span.at}: the Makefile has no target {target}"


# Snippets ----------------------------------------------------------------------------------------------------------


def test_every_fence_is_of_a_kind_that_is_looked_at():
    failures(
        f"{fence.at}: commands stand in `console` fences, with `$ ` before each; this one is {fence.words[0]!r}"
        for page in pages()
        for fence in page.fences
        if fence.words and (fence.words[0] not in FENCES or (fence.words[0] == "console" and len(fence.words) > 1))
    )


@pytest.mark.parametrize("fence", snippets(), ids=lambda fence: str(fence.at))
def test_a_snippet_is_accepted_as_it_stands(fence: Fence, tmp_path: Path):
    check = KINDS.get(" ".join(fence.words[1:]))
    assert check is not None, f"{fence.at}: `yaml {fence.words[1]}` is none of {sorted(KINDS)}"
    try:
        documents = list(YAML(typ="safe").load_all(fence.text))
    except YAMLError as error:
        pytest.fail(f"{fence.at}: {error}")
    failures(check(fence, documents, tmp_path))


@reports_all
def test_json_and_python_that_is_shown_can_be_parsed() -> Iterator[str]:
    for fence in (fence for page in pages() for fence in page.fences):
        try:
            if fence.words[:1] == ("json",):
                json.loads(fence.text)
            elif fence.words[:1] == ("python",):
                compile(fence.text, str(fence.at), "exec")
        except (ValueError, SyntaxError) as error:
            yield f"{fence.at}: {error}"


@reports_all
def test_sentences_fit_120_columns() -> Iterator[str]:
    """Tables, snippets, HTML and single long words may be longer."""
    for page in pages():
        is_fence = False
        for number, line in enumerate((ROOT / page.name).read_text().splitlines(), 1):
            is_fence ^= line.lstrip().startswith("```")
            is_prose = not is_fence and not line.lstrip().startswith(("|", "<", "```"))
            if is_prose and len(line) > 120 and len(line.split(maxsplit=1)[-1]) > 120 - len(line) + len(line.lstrip()):
                yield f"{page.name}:{number}: {len(line)} characters"


# Names -------------------------------------------------------------------------------------------------------------


@reports_all
def test_every_variable_and_error_code_that_is_named_exists() -> Iterator[str]:
    known = set(re.findall(r"\w+", program.text())) | OTHERS | {f"{name}_FILE" for name in SECRET_VARIABLES}
    for page in current_pages():
        whole = "\n".join(span.text for span in page.words_in_code())
        own = set(re.findall(r"\$\{(\w+)", whole)) | set(re.findall(r"(?:^|\s)(\w+)=", whole))
        for span in page.words_in_code():
            for name in re.findall(rf"(?<![\w.-]){program.NAME.pattern}(?![\w-])", span.text):
                if name not in own | known:
                    yield f"{span.at}: neither the program nor this page knows {name}"


def test_every_variable_and_error_code_of_the_program_is_explained():
    reported = {word for span in code() for word in re.findall(r"\w+", span.text)}
    failures(f"{place}: no page explains {name}" for name, place in program.names().items() if name not in reported)


@reports_all
def test_every_metric_that_is_named_exists() -> Iterator[str]:
    known = {name for name, *_ in metrics()}
    ends = ("", "_bucket", "_sum", "_count")
    for span in code():
        for name in re.findall(r"(?<![\w/.-])reposync_[a-z_]+(?=$|[^\w/.:-])", span.text):
            if not any(name.removesuffix(end) in known for end in ends) and name not in program.text():
                yield f"{span.at}: there is no metric {name}"


@reports_all
def test_every_route_that_is_named_exists() -> Iterator[str]:
    paths = description()["paths"]
    routes = {(method.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, each in paths.items() for method in each}
    for span in code():
        for methods, path in re.findall(r"^((?:GET|POST|PATCH|DELETE|PUT|\|)+) (/[\w/{}.-]*)", span.text):
            path = re.sub(r"\{\w+\}", "{}", path)
            for method in methods.split("|"):
                if not {(method, path), (method, f"/api/v1{path}")} & routes:
                    yield f"{span.at}: there is no route {method} {path}"


@reports_all
def test_every_key_of_the_registry_that_is_named_with_its_section_exists() -> Iterator[str]:
    keys = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", REFERENCE.read_text(), re.MULTILINE))
    keys = {key.replace("[]", "") for key in keys} | {key.rpartition(".")[0].replace("[]", "") for key in keys}
    sections = {key.partition(".")[0] for key in keys}
    for page in current_pages():
        for span in page.spans:
            if (
                re.fullmatch(r"[a-z]+(\.[a-z_]+)+", span.text)
                and not span.text.endswith((".yaml", ".com"))
                and span.text.partition(".")[0] in sections
                and span.text not in keys
            ):
                yield f"{span.at}: the registry has no key {span.text}"


@reports_all
def test_every_file_that_is_named_exists() -> Iterator[str]:
    for page in current_pages():
        for span in page.spans:
            path = span.text.rstrip("/")
            is_ours = re.fullmatch(r"[\w.-]+(/[\w.*-]+)+", path) and path.partition("/")[0] in TOP
            if is_ours and not any(ROOT.glob(path)):
                yield f"{span.at}: there is no {path}"


def test_the_reference_is_what_the_program_has():
    text = REFERENCE.read_text()
    assert filled(text) == text, "docs/reference.md is out of date: make reference"


def test_every_error_code_has_its_cause_and_a_remedy():
    text = ERRORS.read_text()
    assert filled_errors(text) == text, "docs/errors.md is out of date: make reference"
    stated = remedies(text)
    failures(f"docs/errors.md: what to do about {code}?" for code in errors() if not stated[code].strip())


def test_the_notice_names_all_files_of_others_in_the_package():
    notice = (ROOT / "NOTICE").read_text()
    ours = {
        "app.css",
        "app.js",
        "home.css",
        "runs.css",
        "runs.js",
        "search.js",
        "search.css",
        "reference.css",
        "icon.svg",
        "config.json",
        "tokenizer_config.json",
        "py.typed",
    }
    for path in (ROOT / "reposync").rglob("*"):
        if path.is_file() and path.suffix not in {".py", ".pyc", ".html", ".mako"} and path.name not in ours:
            assert path.name in notice, f"whose is {path}? NOTICE does not say"


# Links -------------------------------------------------------------------------------------------------------------


@reports_all
def test_every_link_leads_somewhere() -> Iterator[str]:
    anchors = {page.name: page.anchors for page in pages()}
    for page in pages():
        for link in page.links:
            target = urlsplit(link.text)
            if target.scheme:
                continue
            path = (page.folder / unquote(target.path)).resolve() if target.path else ROOT / page.name
            if not path.exists() or not path.is_relative_to(ROOT):
                yield f"{link.at}: {link.text} does not exist"
            elif target.fragment:
                name = path.relative_to(ROOT).as_posix()
                if name in anchors and target.fragment not in anchors[name]:
                    yield f"{link.at}: {name} has no heading #{target.fragment}"


def test_the_index_leads_to_every_page():
    names = {page.name for page in pages() if page.name.startswith("docs/")}
    reached: set[str] = set()
    waiting = ["docs/README.md"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for page in (each for each in pages() if each.name == name):
            waiting += [found for link in page.links if (found := _page_at(page, link))]
    assert names <= reached, f"nobody finds {sorted(names - reached)} from docs/README.md"


def _page_at(page: Page, link: Span) -> str | None:
    path = (page.folder / unquote(urlsplit(link.text).path)).resolve()
    if urlsplit(link.text).scheme or not path.is_relative_to(ROOT):
        return None
    path = path / "README.md" if path.is_dir() else path
    return path.relative_to(ROOT).as_posix() if path.suffix == ".md" else None


def test_the_changelog_knows_this_version():
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / HISTORY).read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in headings
