from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

from reposync.content.chunking import _LANGCHAIN
from reposync.content.languages import canonical_language, known_languages, language_of


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("a.py", "python"), ("a.pyi", "python"), ("A.PY", "python"), ("a.ts", "typescript"), ("a.tsx", "typescript"),
        ("a.js", "javascript"), ("a.jsx", "javascript"), ("a.mjs", "javascript"), ("a.go", "go"), ("a.c", "c"),
        ("a.h", "c"), ("a.cc", "cpp"), ("a.hpp", "cpp"), ("a.cs", "csharp"), ("a.rs", "rust"), ("a.rb", "ruby"),
        ("Rakefile", "ruby"), ("a.java", "java"), ("a.kt", "kotlin"), ("a.swift", "swift"), ("a.m", "objective-c"),
        ("a.php", "php"), ("a.md", "markdown"), ("README.rst", "rst"), ("a.yaml", "yaml"), (".gitlab-ci.yml", "yaml"),
        ("a.json", "json"), ("a.ipynb", "json"), ("pom.xml", "xml"), ("a.csproj", "xml"), ("a.xhtml", "html"),
        ("a.toml", "toml"), ("pyproject.toml", "toml"), ("setup.cfg", "ini"), ("a.sql", "sql"), ("a.sh", "shell"),
        (".bashrc", "shell"), ("a.zsh", "shell"), ("Dockerfile", "dockerfile"), ("Dockerfile.dev", "dockerfile"),
        ("dev.Dockerfile", "dockerfile"), ("Makefile", "make"), ("rules.mk", "make"), ("Makefile.am", "make"),
        ("CMakeLists.txt", "cmake"), ("Jenkinsfile", "groovy"), ("build.gradle", "groovy"), ("main.tf", "terraform"),
        ("a.proto", "protobuf"), ("a.vue", "vue"), ("a.svelte", "svelte"), ("a.hs", "haskell"), ("a.ex", "elixir"),
        ("a.ps1", "powershell"), ("a.vb", "visualbasic"), ("a.tex", "latex"), ("a.r", "r"), ("a.R", "r"),
        ("LICENSE", "text"), ("notes.txt", "text"), ("config.yaml.in", "yaml"), ("app.py.j2", "jinja"),
        ("go.mod", "go-mod"), ("a.d.ts", "typescript"), ("a.lua", "lua"), ("a.sol", "solidity"), ("a.cob", "cobol"),
        ("nothing", None), ("a.unheardof", None), (".py", "python"), ("a.", None), ("python", None),
    ],
)  # fmt: skip
def test_the_language_follows_from_the_file_name(path: str, language: str | None) -> None:
    assert language_of(path.encode()) == language
    assert language_of(b"some.dir/x.go/" + path.encode()) == language


@pytest.mark.parametrize(
    ("line", "language"),
    [
        ("#!/bin/sh", "shell"),
        ("#!/usr/bin/env python3", "python"),
        ("#!/usr/bin/python3.11 -u", "python"),
        ("#!/usr/bin/env -S node --harmony", "javascript"),
        ("#! /usr/bin/perl -w", "perl"),
        ("#!/usr/bin/env -i A=b bash", "shell"),
        ("#!/usr/bin/env Rscript", "r"),
        ("#!/opt/unheard/of", None),
        ("#!", None),
        ("#!'", None),
        ("# python", None),
    ],
)
def test_a_shebang_decides_if_the_name_does_not(line: str, language: str | None) -> None:
    assert language_of(b"bin/run", f"{line}\nrest\n") == language
    assert language_of(b"bin/run.rb", f"{line}\nrest\n") == "ruby"


def test_a_translation_file_of_qt_is_not_typescript() -> None:
    assert language_of(b"de.ts", '<?xml version="1.0"?>\n<!DOCTYPE TS>\n') == "xml"


@given(st.binary(max_size=40), st.one_of(st.text(max_size=60), st.text(max_size=60).map(lambda text: "#!" + text)))
def test_any_name_and_any_text_get_an_answer(path: bytes, text: str) -> None:
    language = language_of(path, text)
    assert language is None or (language == language.lower() and language in known_languages())


@pytest.mark.parametrize(
    ("name", "language"),
    [("Python", "python"), ("py", "python"), (".py", "python"), ("JS", "javascript"), ("c++", "cpp"), ("C#", "csharp"),
     ("cs", "csharp"), ("golang", "go"), ("bash", "shell"), (" yml ", "yaml"), ("h", "c"), ("klingon", None),
     ("", None)],
)  # fmt: skip
def test_people_may_call_a_language_by_its_other_names(name: str, language: str | None) -> None:
    assert canonical_language(name) == language


def test_every_language_that_has_separators_has_them_in_langchain() -> None:
    named = {_LANGCHAIN[language] for language in known_languages() if language in _LANGCHAIN}
    assert len(named) > 20
    for name in named:
        assert RecursiveCharacterTextSplitter.get_separators_for_language(Language(name))
    # All that langchain has are in use; for Perl it knows the name alone.
    assert {language.value for language in Language} - named == {"perl"}
