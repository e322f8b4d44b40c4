"""The sources and the training of the table of word vectors."""

from __future__ import annotations

import io
import random
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.static_pairs import SUFFIXES, Corpus, pairs_of
from benchmarks.static_sources import InvalidPackage, Package, check_maven_licences, read_list, source_files
from benchmarks.static_table import LIST, OUTPUT, TEST_SETS, write
from benchmarks.static_training import train

BODY = "".join(f"    value_{number} = compute_total(request, session)\n" for number in range(6))


def zip_of(folder: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(folder / "package.zip", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return folder / "package.zip"


def read(archive: Path) -> list[str]:
    return [path for path, _ in source_files(archive, SUFFIXES, TEST_SETS)]


def test_no_package_of_a_test_set_is_a_source() -> None:
    named = {package.name: set(re.split(r"[^a-z0-9]+", package.name.lower())) for package in read_list(LIST)}

    assert len(named) >= 300
    assert [name for name, words in named.items() if TEST_SETS & (words | {name.lower()})] == []


def test_the_list_in_the_wheel_names_the_sources() -> None:
    shipped = (OUTPUT / "sources.tsv").read_text("utf-8").splitlines()[1:]

    assert shipped == sorted("\t".join([p.name, p.version, p.licence, p.language]) for p in read_list(LIST))


def test_at_least_15_languages_are_among_the_sources() -> None:
    assert len({package.language for package in read_list(LIST)}) >= 15


def test_a_copyleft_package_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "packages.tsv"
    row = ["pypi", "some-package", "1.0", "0" * 64, "GPL-3.0-only", "Python"]
    file.write_text("registry\tname\tversion\tsha256\tlicence\tlanguage\n" + "\t".join(row) + "\n")

    with pytest.raises(InvalidPackage, match=r"some-package 1\.0: the licence GPL-3\.0-only is not known"):
        read_list(file)


def test_one_permissive_alternative_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "packages.tsv"
    row = ["crates", "some-crate", "1.0", "0" * 64, "GPL-3.0-only OR Apache-2.0 AND MIT", "Rust"]
    file.write_text("registry\tname\tversion\tsha256\tlicence\tlanguage\n" + "\t".join(row) + "\n")

    assert [package.name for package in read_list(file)] == ["some-crate"]


REPORT = """
Lists of 5 third-party dependencies.
     (The Apache Software License, Version 2.0) Retrofit (com.example:retrofit:2.11.0 - https://example.com/)
     (MIT License) JOML (a fork) (org.example:joml:1.10.8 - http://example.com)
     (GNU Lesser General Public License) (The MIT License) Either (org.example:either:1.0 - http://example.com)
     (GNU General Public License) Apache 2.0 (org.example:copyleft:1.0 - http://example.com)
     (Unknown license) Nothing (org.example:nothing:1.0 - no url defined)
"""


def maven(name: str, version: str, licence: str) -> Package:
    return Package("maven", name, version, "0" * 64, licence, "Java")


def test_a_maven_artifact_has_the_licence_that_its_pom_states() -> None:
    listed = [
        maven("com.example:retrofit", "2.11.0", "Apache-2.0"),
        maven("org.example:joml", "1.10.8", "MIT"),
        maven("org.example:either", "1.0", "MIT"),
    ]

    check_maven_licences(listed, REPORT)


@pytest.mark.parametrize(
    ("name", "version", "licence", "stated"),
    [
        ("com.example:retrofit", "2.11.0", "MIT", r"MIT, but \['The Apache Software License, Version 2\.0'\]"),
        ("com.example:retrofit", "2.12.0", "Apache-2.0", "Apache-2.0, but no licence"),
        ("org.example:copyleft", "1.0", "Apache-2.0", r"Apache-2\.0, but \['GNU General Public License'\]"),
        ("org.example:nothing", "1.0", "MIT", r"MIT, but \['Unknown license'\]"),
        ("org.example:missing", "1.0", "MIT", "MIT, but no licence"),
    ],
)
def test_a_maven_artifact_whose_pom_states_a_different_licence_is_refused(
    name: str, version: str, licence: str, stated: str
) -> None:
    with pytest.raises(InvalidPackage, match=f"maven {name} {version}: its POM does not state {stated}"):
        check_maven_licences([maven(name, version, licence)], REPORT)


def test_copies_of_test_sets_and_of_other_projects_are_not_read(tmp_path: Path) -> None:
    archive = zip_of(
        tmp_path,
        {
            "package/own.py": "x = 1\n",
            "package/nlohmann/json.hpp": "int x;\n",
            "package/Redis/client.py": "x = 1\n",
            "package/copies/starlette.py": "x = 1\n",
            "package/_vendor/other.py": "x = 1\n",
            "package/node_modules/other/index.js": "x = 1\n",
            "package/tests/test_own.py": "x = 1\n",
        },
    )

    assert read(archive) == ["package/own.py"]


def test_a_file_under_a_copyleft_licence_is_not_read(tmp_path: Path) -> None:
    licence = "// Distributed under the terms of the GNU General Public License.\n"

    assert read(zip_of(tmp_path, {"package/a.c": licence + "int x;\n", "package/b.c": "int x;\n"})) == ["package/b.c"]


def test_an_archive_writes_no_file(tmp_path: Path) -> None:
    archive = tmp_path / "inside" / "package.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as files:
        for name, kind in (("../../climbs.py", tarfile.REGTYPE), ("link.py", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 6 * (kind == tarfile.REGTYPE)
            files.addfile(member, io.BytesIO(b"x = 1\n"))

    assert read(archive) == ["../../climbs.py"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        (
            "a.py",
            f'def total(request):\n    """Compute the total of a request.\n\n    More.\n    """\n{BODY}',
            "Compute",
        ),
        ("a.go", f"// Total computes the sum of all items.\nfunc Total() {{\n{BODY}}}\n", "computes the sum"),
        (
            "a.java",
            f"/**\n * Computes {{@link Sum}} of all items.\n * @param x the x\n */\nint total() {{\n{BODY}}}\n",
            "Comp",
        ),
        ("a.rb", f"# Computes the sum of all items.\ndef total\n{BODY}end\n", "Computes"),
        ("a.hs", f"-- | Computes the sum of all items.\ntotal :: Int\n{BODY}\n", "Computes"),
        ("a.ex", f'@doc """\nComputes the sum of all items.\n"""\ndef total do\n{BODY}end\n', "Computes"),
        ("a.ml", f"(** Computes the sum of all items. *)\nlet total =\n{BODY}\n", "Computes"),
        ("a.lisp", f'(defun total (items)\n  "Computes the sum of all items."\n{BODY})\n', "Computes"),
    ],
)
def test_the_first_sentence_of_a_comment_is_a_question(path: str, text: str, sentence: str) -> None:
    ((question, code),) = pairs_of(path, text, random.Random(0))

    assert question.startswith(sentence)
    assert "compute_total" in code
    assert question not in code


@pytest.mark.parametrize(
    "comment",
    ["Copyright 2020 by the authors of this", "TODO find out what is wrong here", "x = y(z); q[0] += 7; return {1};"],
)
def test_comments_that_describe_nothing_are_no_questions(comment: str) -> None:
    assert list(pairs_of("a.go", f"// {comment}\nfunc Total() {{\n{BODY}}}\n", random.Random(0))) == []


def corpus_of(*packages: str) -> Corpus:
    corpus = Corpus()
    nouns = ("invoice", "customer", "session", "payment", "account", "ledger", "refund", "parcel")
    verbs = ("store", "remove", "convert", "compare", "render", "validate")
    for name in packages:
        text = "".join(
            f'def {verb}_{noun}(request):\n    """{verb.title()} the {noun} that a caller named."""\n'
            f"    {noun}_{verb} = {noun}s.{verb}(request, retries)\n    {name}_only = {noun}\n{BODY}\n"
            for noun in nouns
            for verb in verbs
        )
        corpus.add_package([("a.py", text)], name)
    return corpus


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        write(train(corpus_of("alder", "birch", "cedar"), print), [], tmp_path / folder)

    for name in ("vectors.npy", "scales.npy", "words.txt", "sources.tsv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_word_of_fewer_than_three_packages_is_not_in_the_table() -> None:
    trained = train(corpus_of("alder", "birch", "cedar"), print)

    assert "invoic" in trained.words
    assert not {"alder", "birch", "cedar"} & set(trained.words)
    assert trained.words == sorted(trained.words)
