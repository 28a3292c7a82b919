"""How a name at a seam is found, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from transport.names import UnknownName, find

BUILTIN = {"json": "json:JSONDecoder", "paths": "pathlib:Path"}


def test_a_short_name_and_a_reference_find_the_same() -> None:
    assert find("paths", BUILTIN, "thing") is Path
    assert find("pathlib:Path", BUILTIN, "thing") is Path


def test_a_nested_name_is_found() -> None:
    assert find("pathlib:Path.cwd", {}, "thing") == Path.cwd


def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_here.py").write_text("class Thing: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/elsewhere"])
    assert find("lying_here:Thing", {}, "thing").__name__ == "Thing"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jsn", ["no thing is called 'jsn'", "did you mean json?"]),
        ("zzz", ["no thing is called 'zzz'", "known: ", "package.module:Name"]),
        ("no_such_package.part:Name", ["thing no_such_package.part:Name", "there is no module no_such_package"]),
        ("pathlib:Pth", ["pathlib has no Pth", "did you mean Path?"]),
        ("breaks_here:Name", ["breaks_here cannot be imported: oh dear"]),
        ("lacks_here:Name", ["lacks_here needs not_there, which is not installed"]),
    ],
)
def test_a_wrong_name_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parts: list[str]) -> None:
    (tmp_path / "breaks_here.py").write_text("raise RuntimeError('oh\\ndear')\n")
    (tmp_path / "lacks_here.py").write_text("import not_there\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName) as caught:
        find(name, BUILTIN, "thing")
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
