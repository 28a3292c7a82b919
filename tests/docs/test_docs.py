from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks, matches

CHEAP_SECONDS, LONG_SECONDS = 60, 900
# A path of the source tree, as text or code names it: learner/feed.py, replay/table/.
NAMED = re.compile(
    r"`((?:transport|replay|learner|actors|deploy|headrace|tests|benchmarks|docs)/(?:[\w./-]*/)?(?:[\w.-]+\.\w+)?)`"
)
MOST_CHARACTERS = {"README.md": 6_000, "ARCHITECTURE.md": 8_000}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def environment(folder: Path) -> dict[str, str]:
    """With `headrace` and `python` as the first of their names on PATH."""
    scripts = folder / "bin"
    scripts.mkdir()
    for name, module in (("headrace", "-m headrace"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (scripts / name).chmod(0o755)
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "200",
        "SDL_VIDEODRIVER": "dummy",
    }


def follow(page: Path, folder: Path, uses: tuple[str, ...], seconds: float) -> None:
    """Writes the files and runs the commands of a page."""
    known, work = environment(folder), folder / "work"
    work.mkdir()
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.use == "file":
            (work / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (work / block.argument).write_text(block.text, encoding="utf-8")
        elif block.use in uses:
            run(block, name_of(page), work, known, seconds)


def run(block: Block, page: str, folder: Path, known: dict[str, str], seconds: float) -> None:
    for command in block.commands():
        done = subprocess.run(command.words, cwd=folder, env=known, capture_output=True, text=True, timeout=seconds)
        said = done.stdout + done.stderr
        where = f"{page}:{block.line} $ {' '.join(command.words)}\n{said}"
        assert done.returncode == int(block.argument or 0), where
        if block.use == "run":
            assert [line for line in command.printed if not matches(line, said)] == [], where


@pytest.mark.skipif(os.name != "posix", reason="the pages are written for a POSIX shell")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_cheap_commands_of_a_page_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path, ("run",), CHEAP_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path, ("run", "check"), LONG_SECONDS)


def test_the_reference_of_the_configuration_is_what_the_structs_say() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sphinx_builds_the_documentation_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").is_file()


def test_every_file_that_a_page_names_is_there() -> None:
    missing = []
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md"]:
        named = set(NAMED.findall(page.read_text(encoding="utf-8")))
        missing += [f"{name_of(page)}: {name}" for name in sorted(named) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize(("name", "most"), MOST_CHARACTERS.items())
def test_the_first_pages_stay_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8")) <= most


def test_a_block_says_what_it_is_for() -> None:
    text = "<!-- run 2 -->\n```console\n$ headrace up --actor 4   # wrong\nheadrace: … did you\n\n$ true\n```\n\n```\nfree\n```\n"
    (found,) = blocks(text)
    assert found.use == "run" and found.argument == "2" and found.line == 2
    assert found.commands() == [(["headrace", "up", "--actor", "4"], ["headrace: … did you"]), (["true"], [])]
    assert [block.argument for block in blocks("<!-- file a/b.py -->\n```python\nx = 1\n```\n")] == ["a/b.py"]
    with pytest.raises(ValueError, match="line 3: say what this block is for"):
        list(blocks("one\n\n```python\nx = 1\n```\n"))


def test_a_shown_line_is_compared_with_what_was_printed() -> None:
    assert matches("size … of 3", "the  size is 2 of 3 (now)\n")
    assert matches("a   b", "a b\n") and not matches("a b", "a\nb\n") and not matches("size … of 4", "size 2 of 3\n")
