from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content import rules as rules_module
from reposync.content.attributes import Attributes
from reposync.content.model import REMEDIES, Skip, Skipped
from reposync.content.rules import PathRules

FILE, EXECUTABLE, SYMLINK, SUBMODULE = 0o100644, 0o100755, 0o120000, 0o160000
NOTHING = Attributes()


def reason(rules: PathRules, path: str | bytes, mode: int = FILE) -> Skip | None:
    decision = rules.decide(path.encode() if isinstance(path, str) else path, mode)
    return None if decision is None else decision.reason


def rules(*include: str, exclude: tuple[str, ...] = (), attributes: str = "") -> PathRules:
    return PathRules(include, exclude, Attributes.parse({b"": attributes}))


@pytest.mark.parametrize(
    "path",
    ["README.md", "src/main.py", ".gitlab-ci.yml", "a/.hidden/x.go", "Makefile", "src/vendor.py", "locks/file.lock.py",
     "src/external/ours.c", "dist/index.js", "lib/admin.js", "jquery_plugin_of_ours.js", "-rf", "with space.c",
     "resources/js/bootstrap.js", "lib/injection.config.dart",
     # Code about pods and vendors
     "src/pods/list.go", "pods/list.go", "src/Pods/PodLister.cs", "app/Http/Controllers/Vendor/VendorController.php",
     "src/Vendors/VendorService.cs", "app/models/vendor/invoice.rb", "Vendor/Invoice.php", "vendors/acme.tf",
     "src/vendor/v1.2/api.ts", "src/Node_Modules/ours.c", "src/carthage/build.go",
     # Only the content says whether these are binary
     "scripts/Makefile.lib", "Makefile.so", "docker/Dockerfile.deb", "Dockerfile.iso", "README.ko", "Jenkinsfile.deb",
     "templates/page.pt", "cells/sky130.lib", "db/records.db", "1abc.pdb", "config/app.pkl", "firmware.bin"],
)  # fmt: skip
def test_source_files_are_indexed(path: str) -> None:
    assert reason(rules(), path) is None
    assert reason(rules(), path, EXECUTABLE) is None


LEFT_OUT = {
    Skip.LOCK_FILE: ["package-lock.json", "web/yarn.lock", "Cargo.lock", "go.sum", "infra/.terraform.lock.hcl"],
    Skip.MINIFIED: ["static/app.min.js", "static/app.MIN.CSS", "static/app.js.map"],
    Skip.VENDORED: [
        "node_modules/x/index.js", "vendor/b/c.go", "tools/vendor/github.com/b/c.go", "app/vendor/bundle/ruby/a.rb",
        "public/vendor/telescope/app.js", "third_party/zlib/zlib.c", "Pods/AFNetworking/a.m",
        "mobile/ios/Pods/AFNetworking/a.m", "Carthage/Checkouts/a/b.swift", "Godeps/_workspace/src/a.go", "gradlew",
        "static/jquery-3.6.0.js", "a\nb/node_modules/c.js", "\x1b[31m/node_modules/x", "vendor/../../etc/x",
    ],
    Skip.GENERATED: [
        "api/v1/service.pb.go", "proto/service_pb2.py", "proto/service_pb2_grpc.py", "lib/model.g.dart",
        "Form1.Designer.cs",
    ],
    Skip.BINARY: [
        "logo.png", "LOGO.PNG", "dump.sqlite3", "model.safetensors", "dist/app.jar", "lib/libz.so",
        "out/makefile_diagram.zip",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("expected", "path"), [(reason, path) for reason, paths in LEFT_OUT.items() for path in paths])
def test_a_file_that_hardly_anybody_searches_is_left_out_by_its_path(path: str, expected: Skip) -> None:
    assert reason(rules(), path) is expected


def test_symlinks_and_submodules_never_are() -> None:
    everything = rules("**", "a")
    assert reason(everything, "a", SYMLINK) is Skip.SYMLINK
    assert reason(everything, "a", SUBMODULE) is Skip.SUBMODULE


def test_include_leaves_out_everything_else_and_exclude_beats_it() -> None:
    some = rules("src/**", "*.md", "!src/old/**", exclude=("src/tmp/",))
    assert reason(some, "src/a.py") is None
    assert reason(some, "docs/b.md") is None
    assert reason(some, "docs/b.rst") is Skip.NOT_INCLUDED
    assert reason(some, "src/old/a.py") is Skip.NOT_INCLUDED
    assert reason(some, "src/tmp/a.py") is Skip.EXCLUDED


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        # Patterns that name what is left out by default bring it back.
        ("vendor/ours/**", "vendor/ours/a.go", None),
        ("/vendor/ours", "vendor/ours/a.go", None),
        ("**/node_modules/@ours/*.js", "web/node_modules/@ours/a.js", None),
        ("package-lock.json", "web/package-lock.json", None),
        ("*.lock", "Cargo.lock", None),
        ("*.pb.go", "api/a.pb.go", None),
        ("static/app.min.js", "static/app.min.js", None),
        ("*.png", "docs/logo.png", None),
        ("**/vendor/ours/**", "vendor/ours/a.go", None),
        ("tools/vendor/", "tools/vendor/github.com/ours/a.go", None),
        ("mobile/ios/Pods/**", "mobile/ios/Pods/a.m", None),
        (".yarn/plugins/ours.cjs", ".yarn/plugins/ours.cjs", None),
        # Patterns that do not name it do not.
        ("src/**", "src/node_modules/a.js", Skip.VENDORED),
        ("**/*.js", "node_modules/a.js", Skip.VENDORED),
        ("**", "package-lock.json", Skip.LOCK_FILE),
        ("vendor/ours/**", "vendor/ours/node_modules/a.js", Skip.VENDORED),
        ("vendor/ours/**", "vendor/ours/go.sum", Skip.LOCK_FILE),
        ("vendor/ours/**", "vendor/theirs/a.go", Skip.NOT_INCLUDED),
    ],
)
def test_an_include_pattern_brings_back_what_it_names(pattern: str, path: str, expected: Skip | None) -> None:
    assert reason(rules(), path) is not None
    assert reason(rules(pattern), path) is expected


def test_gitattributes_mark_files_and_take_the_defaults_back() -> None:
    some = rules(
        attributes="gen/** linguist-generated\nlib/** linguist-vendored=true\n"
        "vendor/ours/** -linguist-vendored\n*.pb.go linguist-generated=false\n"
    )
    assert reason(some, "gen/a.py") is Skip.GENERATED
    assert reason(some, "lib/a.py") is Skip.VENDORED
    assert reason(some, "vendor/ours/a.go") is None
    assert reason(some, "vendor/theirs/a.go") is Skip.VENDORED
    assert reason(some, "api/a.pb.go") is None
    assert reason(some, "vendor/ours/logo.png") is Skip.BINARY


def test_an_include_pattern_that_names_a_marked_folder_wins_over_the_mark() -> None:
    marked = "gen/** linguist-generated\n"
    assert reason(rules("gen/**", attributes=marked), "gen/a.py") is None
    assert reason(rules("**/*.py", attributes=marked), "gen/a.py") is Skip.GENERATED


@pytest.mark.parametrize(
    ("pattern", "path", "kept"),
    [
        ("*.csv", "data/points.csv", True),
        ("data/**/*.json", "data/a/b.json", True),
        ("*.[Cc]*.svg", "logo.C1.svg", True),
        ("data/points.csv", "data/points.csv", True),
        ("src/crc_tables.c", "src/crc_tables.c", True),
        ("*.pb.go", "a.pb.go", True),
        ("app.min.js", "a/app.min.js", True),
        ("**", "data/points.csv", False),
        ("data/", "data/points.csv", False),
        ("*.py", "tables.py", False),
        ("points.*", "points.csv", False),
        ("*.cs?", "points.csv", False),
        ("src/Acme.json/", "src/Acme.json/points.csv", False),
        ("*.csv", "points.svg", False),
        ("!*.csv", "points.csv", False),
    ],
)
def test_data_and_generated_files_are_kept_if_an_include_pattern_names_them(
    pattern: str, path: str, kept: bool
) -> None:
    assert rules("**", pattern).keeps_generated(path.encode()) is kept
    assert not rules("**").keeps_generated(path.encode())
    assert rules(attributes=f"/{path} -linguist-generated").keeps_generated(path.encode())


def test_patterns_match_paths_that_are_not_utf8_byte_by_byte() -> None:
    some = rules(exclude=("caf?.py", "grün/", "*.t?t"))
    assert reason(some, b"caf\xe9.py") is Skip.EXCLUDED
    assert reason(some, "café.py") is None  # é is two bytes, and git's ? is one
    assert reason(some, "grün/a.py") is Skip.EXCLUDED
    assert reason(some, b"\xff\xfe/a.t\xfft") is Skip.EXCLUDED
    assert reason(some, b"a\nb/caf\xe9.py") is Skip.EXCLUDED


@given(st.binary(min_size=1, max_size=200), st.integers(0, 0o177777))
def test_every_path_gets_an_answer(path: bytes, mode: int) -> None:
    some = rules("**", exclude=("a*b",), attributes="*a* linguist-generated\n")
    assert isinstance(some.decide(path, mode), Skipped | None)


def test_an_upgrade_decides_again_where_there_are_patterns_and_nowhere_else() -> None:
    """The constants are what programs wrote that matched patterns otherwise."""
    assert PathRules([], []).fingerprint == "bd51c2dc35f9ccfbbe25fe3ee18bf54d"
    assert PathRules(["src/*"], []).fingerprint != "979c78e4d075b1b81fa69c11e251ea33"


def test_the_fingerprint_changes_with_everything_that_changes_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(include: list[str], exclude: list[str], attributes: Attributes = NOTHING) -> str:
        return PathRules(include, exclude, attributes).fingerprint

    marked = Attributes.parse({b"lib": "* linguist-vendored"})
    different = [
        fingerprint([], []),
        fingerprint(["a"], []),
        fingerprint([], ["a"]),
        fingerprint(["a", "b"], []),
        fingerprint(["b", "a"], []),
        fingerprint([], [], marked),
        fingerprint([], [], Attributes.parse({b"": "* linguist-vendored"})),
    ]
    assert len(set(different)) == len(different)
    assert fingerprint([], [], marked) == fingerprint(
        [], [], Attributes.parse({b"lib": "*.c text\n* linguist-vendored\n", b"": "*.c text\n"})
    )
    monkeypatch.setattr(rules_module, "CONTENT_REVISION", -1)
    assert fingerprint([], []) not in different


def test_the_documentation_has_each_reason_with_the_remedy_that_the_pages_show() -> None:
    page = (Path(__file__).parents[3] / "docs/read-the-history.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|(.*)\|$", page, re.MULTILINE)
    remedies = {reason: f"{meaning} {remedy}" for reason, meaning, remedy in rows}
    for reason in Skip:
        assert REMEDIES.get(reason, "") in remedies[reason], reason
