from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from deploy.cli.main import parser_of
from deploy.config.command_line import given, parse
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from deploy.supervision.status import TROUBLES
from learner.weights.checkpoint import CHECKPOINT_FORMAT
from replay.log import segments
from replay.log.state import STATE_FORMAT
from tests.docs import messages
from tests.docs.blocks import PAGES, ROOT, blocks, matches
from tests.docs.check import ALL, CHEAP, failures, name_of
from transport.experience import SPEC_FORMAT
from transport.files import renamed
from transport.messages.fields import PROTOCOL

CHEAP_SECONDS, LONG_SECONDS = 240, 900
# The commands of the other pages take most of a minute together, so they are slow tests.
FIRST_PAGES = [page for page in PAGES if page == ROOT / "README.md" or page.parent == ROOT / "docs" / "start"]
# A path of the source tree, as text or code names it: learner/loop.py, replay/table/.
NAMED = re.compile(
    r"`((?:transport|replay|learner|actors|deploy|headrace|tests|benchmarks|docs)/(?:[\w./-]*/)?(?:[\w.-]+\.\w+)?)`"
)
LINK = re.compile(r"\]\(([^)\s:#]*)#([^)\s]+)\)")  # to a heading of a page: the page's path, empty for its own, and the anchor
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FUNCTION = re.compile(r"`([\w/]+\.py)`\s+`([\w.]+)`")  # a file, and a function or method of it
FORMATS = {
    "`config.toml`": renamed.FORMAT,
    "`spec.json`": SPEC_FORMAT,
    "`*.segment`": int(segments.FORMAT),
    "`state.npz`": STATE_FORMAT,
    "checkpoints and exported policies": int(CHECKPOINT_FORMAT),
    "messages": PROTOCOL,
}
MOST_CHARACTERS = {"README.md": 6_000, "ARCHITECTURE.md": 8_000}


@pytest.mark.skipif(os.name != "posix", reason="the pages are written for a POSIX shell")
@pytest.mark.parametrize(
    "page", [page if page in FIRST_PAGES else pytest.param(page, marks=pytest.mark.slow) for page in PAGES], ids=name_of
)
def test_the_cheap_commands_of_a_page_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert list(failures(page, tmp_path, CHEAP, CHEAP_SECONDS)) == []


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path) -> None:
    assert list(failures(page, tmp_path, ALL, LONG_SECONDS)) == []


def test_commands_that_are_only_shown_are_ones_that_headrace_takes() -> None:
    wrong, tried = [], 0
    for page in PAGES:
        shown = [block for block in blocks(page.read_text(encoding="utf-8")) if block.use == "show"]
        for command in [command for block in shown for command in block.commands()]:
            words = list(takewhile(lambda word: word not in (">", "|"), command.words))
            if words[0] != "headrace" or "…" in words:
                continue
            name, typed, tried = words[1], ["1" if word == "KEY" else word for word in words[2:]], tried + 1
            try:
                parsed = parse(parser_of(name, typed), typed, name)
                if name == "up":
                    resolve(layers(given(parsed), parsed.config, None, parsed.preset))
            except ConfigError as error:
                if not str(error).startswith("cannot read"):  # the file of --config
                    wrong.append(f"{name_of(page)}: {' '.join(words)}: {error}")
    assert tried >= 40 and wrong == []


@pytest.mark.parametrize("maker", ["generate.py", "results.py"])
def test_a_page_that_is_made_is_what_its_sources_say(maker: str) -> None:
    done = subprocess.run([sys.executable, f"docs/{maker}", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_sphinx_builds_the_documentation_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").is_file()


def test_every_link_to_a_heading_finds_it() -> None:
    missing, tried = [], 0
    for page in PAGES:
        for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / path).resolve() if path else page
            headings = HEADING.findall(target.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            tried += 1
            missing += [f"{name_of(page)}: {path}#{anchor}"] if anchor not in slugs else []
    assert tried >= 15 and missing == []


def test_every_file_that_a_page_names_is_there() -> None:
    missing = []
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md"]:
        named = set(NAMED.findall(page.read_text(encoding="utf-8")))
        missing += [f"{name_of(page)}: {name}" for name in sorted(named) if not (ROOT / name).exists()]
    assert missing == []


def test_every_function_on_the_way_of_a_record_is_in_the_file_that_is_named() -> None:
    found = FUNCTION.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    missing = [f"{file} {name}" for file, name in found if not defines(ROOT / file, name)]
    assert len(found) >= 12 and missing == []


def test_the_format_numbers_of_the_protocols_page_are_those_of_the_source() -> None:
    page = (ROOT / "docs" / "explanation" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", page.partition("## Format numbers")[2], re.MULTILINE)
    assert {name: int(number) for name, number in rows} == FORMATS
    assert f"protocol number {PROTOCOL}." in page


def defines(file: Path, name: str) -> bool:
    """Whether a file has this function, or this method of this class."""
    nodes: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        named = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        if not named:
            return False
        nodes = named[0].body
    return True


@pytest.mark.parametrize(("name", "most"), MOST_CHARACTERS.items())
def test_the_first_pages_stay_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8")) <= most


def test_what_is_ones_own_takes_ten_lines_in_the_readme() -> None:
    shown = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    lines = {block.argument: sum(map(bool, map(str.strip, block.text.splitlines()))) for block in shown if block.use == "file"}
    assert set(lines) == {"my_env.py", "my_net.py"} and max(lines.values()) <= 10, lines


@pytest.mark.xdist_group("texts")
def test_every_message_that_troubleshooting_explains_is_one_that_the_source_prints() -> None:
    page, known = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), messages.texts()
    explained = messages.quoted(page)
    assert len(explained) > 20 and [message for message in explained if not messages.says(message, known)] == []


def test_every_trouble_of_the_status_is_explained_and_no_other() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").partition("| counter | means |")[2]
    rows = "".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(TROUBLES)


@pytest.mark.xdist_group("texts")
def test_a_message_is_compared_with_what_the_source_says() -> None:
    assert messages.quoted("`a …`, `b`\n: Why.\n\n`not a term`\n\ntext `c`\n") == ["a …", "b"]
    known = messages.texts()
    assert messages.says("run … is already up", known) and not messages.says("run … is already upp", known)
    assert messages.says("out of memory: killed by the kernel", known), "a part that is a constant of the source"


def test_a_block_that_fails_is_reported_and_the_others_are_run(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"  # any, for its name
    text = "<!-- run -->\n```\n$ false\n```\n\n<!-- run 1 -->\n```\n$ false\n```\n\n<!-- run -->\n```\n$ echo one\ntwo\n```\n"
    wrong = tmp_path / "page.md"
    wrong.write_text(text)
    said: list[str] = []
    (tmp_path / "there").mkdir()
    found = [report.partition("\n")[0] for report in failures(wrong, tmp_path / "there", CHEAP, 10, said.append, name=page.name)]
    assert found == ["index.md:2 $ false: exit 1, not 0", "index.md:12 $ echo one: it does not print 'two'"] and len(said) == 3


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
