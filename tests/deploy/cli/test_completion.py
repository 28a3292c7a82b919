"""The tab key: a real bash completes by the script that `headrace completion bash` prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli.machine import completion
from deploy.cli.main import COMMANDS, main
from learner.devices import installing

pytest.importorskip("shtab", reason="needs shtab: pip install 'headrace[completion]'")

# Reads the script, which takes half a second, then answers each line that is typed with a line of what is offered.
ASK = """
source "$1"
while read -r -a COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_headrace "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[@]}"
done
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "headrace"
    code = "import sys; from deploy.cli.main import main; sys.exit(main(['completion', 'bash']))"
    path.write_text(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    return path


OFFERED = {
    "headrace sta": {"status"},
    "headrace up --learner.batch": {"--learner.batch-size"},
    "headrace up --algo d": {"dqn"},
    "headrace up --track w": {"wandb"},
    "headrace up --env sn": {"snake"},
    "headrace up --actors.precision b": {"bfloat16"},
    "headrace up --preset pend": {"pendulum"},
    "headrace presets pend": {"pendulum"},
    "headrace bench pipe": {"pipeline"},
    "headrace status nig": {"night"},
    "headrace up --run nig": {"night"},
    "headrace suite comp": {"compare.toml"},
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_what_bash_offers(script: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "night").mkdir(parents=True)
    (tmp_path / "compare.toml").touch()
    command, typed = ["bash", "-c", ASK, "bash", str(script)], "".join(f"{line}\n" for line in OFFERED)
    done = subprocess.run(command, cwd=tmp_path, input=typed, capture_output=True, text=True, timeout=60)
    assert dict(zip(OFFERED, map(set, map(str.split, done.stdout.splitlines())), strict=True)) == OFFERED, done.stderr


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_shell_gets_a_script_with_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert not [name for name in COMMANDS if name not in text] and "night" not in text


def test_without_the_library_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err.endswith(f"{installing.headrace('completion')}\n")
