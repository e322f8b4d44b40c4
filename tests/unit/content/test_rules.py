from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content import rules as rules_module
from reposync.content.attributes import Attributes
from reposync.content.detection import SMALLEST_DATA_CHARS
from reposync.content.documents import make_document
from reposync.content.model import Skip, Skipped
from reposync.content.rules import PathRules, read_differently

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
     "resources/js/bootstrap.js", "lib/injection.config.dart"],
)  # fmt: skip
def test_ordinary_source_files_are_indexed(path: str) -> None:
    assert reason(rules(), path) is None
    assert reason(rules(), path, EXECUTABLE) is None


def test_symlinks_and_submodules_never_are() -> None:
    everything = rules("**", "a")
    assert reason(everything, "a", SYMLINK) is Skip.SYMLINK
    assert reason(everything, "a", SUBMODULE) is Skip.SUBMODULE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("package-lock.json", Skip.LOCK_FILE),
        ("web/yarn.lock", Skip.LOCK_FILE),
        ("Cargo.lock", Skip.LOCK_FILE),
        ("go.sum", Skip.LOCK_FILE),
        ("pnpm-lock.yaml", Skip.LOCK_FILE),
        ("infra/.terraform.lock.hcl", Skip.LOCK_FILE),
        ("static/app.min.js", Skip.MINIFIED),
        ("static/app.MIN.CSS", Skip.MINIFIED),
        ("static/app.js.map", Skip.MINIFIED),
        ("node_modules/x/index.js", Skip.VENDORED),
        ("vendor/b/c.go", Skip.VENDORED),
        ("tools/vendor/github.com/b/c.go", Skip.VENDORED),
        ("app/vendor/bundle/ruby/a.rb", Skip.VENDORED),
        ("public/vendor/telescope/app.js", Skip.VENDORED),
        ("third_party/zlib/zlib.c", Skip.VENDORED),
        ("Pods/AFNetworking/a.m", Skip.VENDORED),
        ("mobile/ios/Pods/AFNetworking/a.m", Skip.VENDORED),
        ("Carthage/Checkouts/a/b.swift", Skip.VENDORED),
        ("Godeps/_workspace/src/a.go", Skip.VENDORED),
        ("gradlew", Skip.VENDORED),
        ("static/jquery-3.6.0.js", Skip.VENDORED),
        ("api/v1/service.pb.go", Skip.GENERATED),
        ("proto/service_pb2.py", Skip.GENERATED),
        ("proto/service_pb2_grpc.py", Skip.GENERATED),
        ("lib/model.g.dart", Skip.GENERATED),
        ("Form1.Designer.cs", Skip.GENERATED),
        ("logo.png", Skip.BINARY),
        ("LOGO.PNG", Skip.BINARY),
        ("dump.sqlite3", Skip.BINARY),
        ("model.safetensors", Skip.BINARY),
        ("dist/app.jar", Skip.BINARY),
        ("lib/libz.so", Skip.BINARY),
        ("out/makefile_diagram.zip", Skip.BINARY),
    ],
)
def test_what_hardly_anybody_searches_is_left_out_by_its_path(path: str, expected: Skip) -> None:
    assert reason(rules(), path) is expected


@pytest.mark.parametrize(
    "path",
    ["src/pods/list.go", "pkg/kubelet/pods/manager.go", "web/src/components/pods/PodList.vue", "pods/list.go",
     "src/Pods/PodLister.cs", "app/Http/Controllers/Vendor/VendorController.php", "src/Vendors/VendorService.cs",
     "app/models/vendor/invoice.rb", "docs/user/vendors/payouts.mdx", "Vendor/Invoice.php", "vendors/acme.tf",
     "tests/Database/migrations/multi_path/vendor/2016_01_01_create_flights.php", "src/vendor/v1.2/api.ts",
     "src/Node_Modules/ours.c", "src/carthage/build.go"],
)  # fmt: skip
def test_code_about_pods_and_vendors_is_code(path: str) -> None:
    assert reason(rules(), path) is None


@pytest.mark.parametrize(
    "path",
    ["scripts/Makefile.lib", "Makefile.so", "docker/Dockerfile.deb", "Dockerfile.rpm", "Dockerfile.iso", "README.ko",
     "Jenkinsfile.deb", "templates/page.pt", "cells/sky130.lib", "db/records.db", "contrib/filter.orc", "1abc.pdb",
     "config/app.pkl", "firmware.bin", "chicken/srfi-1.egg", "native/addon.node", "certs/ca.cer"],
)  # fmt: skip
def test_only_the_content_says_whether_a_file_of_these_names_is_binary(path: str) -> None:
    assert reason(rules(), path) is None


def test_exclude_has_the_semantics_of_gitignore() -> None:
    some = rules(exclude=("docs/", "*.txt", "!keep.txt", "/top.py", "a/**/z.py"))
    assert reason(some, "docs/index.md") is Skip.EXCLUDED
    assert reason(some, "src/docs/index.md") is Skip.EXCLUDED
    assert reason(some, "docs") is None  # a file of that name: the pattern is for folders
    assert reason(some, "notes.txt") is Skip.EXCLUDED
    assert reason(some, "deep/keep.txt") is None
    assert reason(some, "top.py") is Skip.EXCLUDED
    assert reason(some, "src/top.py") is None
    assert reason(some, "a/b/c/z.py") is Skip.EXCLUDED
    assert reason(rules(exclude=("old/**", "!old/keep/**")), "old/keep/a.py") is None
    assert reason(rules(exclude=("!old/keep/**", "old/")), "old/keep/a.py") is Skip.EXCLUDED
    assert some.decide(b"notes.txt", FILE) == Skipped(Skip.EXCLUDED, "matches the exclude pattern '*.txt'")


def test_include_leaves_out_everything_else_and_exclude_beats_it() -> None:
    some = rules("src/**", "*.md", "!src/old/**", exclude=("src/tmp/",))
    assert reason(some, "src/a.py") is None
    assert reason(some, "docs/b.md") is None
    assert reason(some, "docs/b.rst") is Skip.NOT_INCLUDED
    assert reason(some, "src/old/a.py") is Skip.NOT_INCLUDED
    assert reason(some, "src/tmp/a.py") is Skip.EXCLUDED


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("vendor/ours/**", "vendor/ours/a.go"),
        ("/vendor/ours", "vendor/ours/a.go"),
        ("vendor/", "vendor/a.go"),
        ("**/node_modules/@ours/*.js", "web/node_modules/@ours/a.js"),
        ("package-lock.json", "web/package-lock.json"),
        ("*.lock", "Cargo.lock"),
        ("*.pb.go", "api/a.pb.go"),
        ("static/app.min.js", "static/app.min.js"),
        ("*.png", "docs/logo.png"),
        ("**/vendor/ours/**", "vendor/ours/a.go"),
        ("tools/vendor/", "tools/vendor/github.com/ours/a.go"),
        ("Pods/Ours/**", "Pods/Ours/a.m"),
        ("mobile/ios/Pods/**", "mobile/ios/Pods/a.m"),
        (".yarn/plugins/ours.cjs", ".yarn/plugins/ours.cjs"),
    ],
)
def test_an_include_pattern_that_names_what_is_left_out_by_default_brings_it_back(pattern: str, path: str) -> None:
    assert reason(rules(), path) is not None
    assert reason(rules("*.py", pattern), path) is None


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("src/**", "src/node_modules/a.js", Skip.VENDORED),
        ("**/*.js", "node_modules/a.js", Skip.VENDORED),
        ("**", "package-lock.json", Skip.LOCK_FILE),
        ("vendor/ours/**", "vendor/ours/node_modules/a.js", Skip.VENDORED),
        ("vendor/ours/**", "vendor/ours/go.sum", Skip.LOCK_FILE),
        ("vendor/ours/**", "vendor/theirs/a.go", Skip.NOT_INCLUDED),
    ],
)
def test_an_include_pattern_that_does_not_name_it_does_not(pattern: str, path: str, expected: Skip) -> None:
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


def test_generated_content_is_kept_where_somebody_asked_for_it() -> None:
    some = rules("**/*.py", "*.pb.go", attributes="kept.py -linguist-generated\n")
    assert some.keeps_generated(b"a/kept.py")
    assert some.keeps_generated(b"a.pb.go")
    assert not some.keeps_generated(b"a/other.py")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.csv", "data/points.csv"),
        ("data/**/*.json", "data/a/b.json"),
        ("*.[Cc]*.svg", "logo.C1.svg"),
        ("*.dat", "a.dat"),
        ("data/points.csv", "data/points.csv"),
        ("src/crc_tables.c", "src/crc_tables.c"),
        ("*.pb.go", "a.pb.go"),
        ("app.min.js", "a/app.min.js"),
    ],
)
def test_an_include_pattern_that_names_data_keeps_it(pattern: str, path: str) -> None:
    assert rules("**", pattern).keeps_generated(path.encode())
    assert not rules("**").keeps_generated(path.encode())


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("**", "data/points.csv"),
        ("data/", "data/points.csv"),
        ("data/**", "data/points.csv"),
        ("*.py", "tables.py"),
        ("*.*", "points.csv"),
        ("points.*", "points.csv"),
        ("*.cs?", "points.csv"),
        ("src/Acme.Core", "src/Acme.Core/points.csv"),
        ("src/Acme.json/", "src/Acme.json/points.csv"),
        ("*.csv", "points.svg"),
        ("!*.csv", "points.csv"),
    ],
)
def test_an_include_pattern_that_does_not_name_data_does_not_keep_it(pattern: str, path: str) -> None:
    assert not rules("**", pattern).keeps_generated(path.encode())


def test_gitattributes_keep_data_that_the_repository_wants_to_count() -> None:
    assert rules(attributes="data/** -linguist-generated\n").keeps_generated(b"data/points.csv")


def test_an_upgrade_reads_notebooks_and_large_files_again_and_no_others() -> None:
    assert read_differently(b"a/b.ipynb", 10)
    assert read_differently(b"B.IPYNB", 10)
    assert read_differently(b"a.csv", SMALLEST_DATA_CHARS)
    assert not read_differently(b"a.csv", SMALLEST_DATA_CHARS - 1)
    assert not read_differently(b"ipynb", 10)


@given(st.sampled_from(["a.csv", "a", "a.py", "a.md"]), st.text(alphabet="1,.é漢a \n", min_size=1, max_size=50))
def test_what_is_not_read_differently_is_no_data_in_any_encoding(path: str, text: str) -> None:
    for encoding in ("utf-8", "utf-16", "utf-32"):
        content = (text * SMALLEST_DATA_CHARS)[: SMALLEST_DATA_CHARS // 2].encode(encoding)
        if not read_differently(path.encode(), len(content)):
            made = make_document(path.encode(), content, len(content))
            assert not isinstance(made, Skipped) or made.reason is not Skip.DATA


def test_patterns_match_paths_that_are_not_utf8_byte_by_byte() -> None:
    some = rules(exclude=("caf?.py", "grün/", "*.t?t"))
    assert reason(some, b"caf\xe9.py") is Skip.EXCLUDED
    assert reason(some, "café.py") is None  # é is two bytes, and git's ? is one
    assert reason(some, "grün/a.py") is Skip.EXCLUDED
    assert reason(some, b"\xff\xfe/a.t\xfft") is Skip.EXCLUDED


@pytest.mark.parametrize(
    "path", [b"a\nb/node_modules/c.js", b"\x1b[31m/node_modules/x", b"vendor/../../etc/x", b"x\n/third_party/\n"]
)
def test_a_hostile_name_is_only_a_name(path: bytes) -> None:
    assert reason(rules(), path) is Skip.VENDORED


def test_a_line_break_in_a_name_does_not_hide_it_from_a_pattern() -> None:
    some = rules(exclude=("secret.txt", "private/**/x"))
    assert reason(some, b"a\nb/secret.txt") is Skip.EXCLUDED
    assert reason(some, b"private/a\nb/x") is Skip.EXCLUDED
    assert reason(some, b"secret.txt\n") is None  # another name


@given(st.binary(min_size=1, max_size=200), st.integers(0, 0o177777))
def test_every_path_gets_an_answer(path: bytes, mode: int) -> None:
    some = rules("**", exclude=("a*b",), attributes="*a* linguist-generated\n")
    assert isinstance(some.decide(path, mode), Skipped | None)


def test_decisions_are_those_of_git_for_the_same_patterns(tmp_path: Path) -> None:
    patterns = ["*.log", "!keep.log", "build/", "/root.py", "doc/*.txt", "a/**/b", "x[0-9]?", "sp\\ ace", "**/tmp/**"]
    names = ["a.log", "keep.log", "build", "build.py", "root.py", "x.txt", "b", "x1y", "sp ace", "tmp", "c.py"]
    paths = [f"{folder}{name}" for folder in ("", "doc/", "a/", "a/c/", "build/", "tmp/", "q/tmp/r/") for name in names]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("\n".join(patterns) + "\n")
    answer = subprocess.run(
        ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(paths).encode(),
        capture_output=True,
        check=True,
    )
    ignored = set(answer.stdout.decode().split("\0")) - {""}
    ours = rules(exclude=tuple(patterns))
    assert {path for path in paths if reason(ours, path) is Skip.EXCLUDED} == ignored


def test_an_upgrade_decides_again_where_there_are_patterns_and_nowhere_else() -> None:
    """The constants are what programs wrote that matched patterns otherwise."""
    assert PathRules([], []).fingerprint == "bd51c2dc35f9ccfbbe25fe3ee18bf54d"
    assert PathRules(["src/*"], []).fingerprint != "979c78e4d075b1b81fa69c11e251ea33"
    assert PathRules(["src/*"], []).fingerprint_of(1) == "3de26423d025adac9944295c2537b577"


def test_a_pattern_of_files_in_a_folder_also_matches_those_in_its_folders_as_for_git() -> None:
    assert reason(rules(exclude=("docs/*",)), "docs/api/index.md") is Skip.EXCLUDED
    assert reason(rules("src/*"), "src/deep/a.py") is None
    assert reason(rules(exclude=("test[^s]*", "build[!0-9]*")), "test/models.py") is None


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
