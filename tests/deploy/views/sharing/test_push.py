"""`headrace push` against a server that stands in for the repositories: nothing leaves this machine."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.children import child_environment
from deploy.views.sharing import hub
from tests.deploy.views.sharing.exported import make_exported
from tests.deploy.views.sharing.stand_in import FOREIGN, OWN, StandIn, serving

TOKEN = "hf_ThisIsTheSecretOfTheTest"
needs_hub = pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="needs headrace[hub]")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serving(TOKEN, {}) as stand_in:
        yield stand_in


def push(folder: Path, url: str, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Runs the command in `folder`, without anything of this account."""
    own = {name: value for name, value in child_environment().items() if not name.startswith("HF_")}
    given = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"} | (
        {"HF_TOKEN": token} if token else {}
    )
    command = [sys.executable, "-P", "-m", "deploy.cli.main", "push", *words]
    return subprocess.run(command, cwd=folder, env=own | given, capture_output=True, text=True, timeout=120)


@needs_hub
def test_policy_and_card_go_to_a_private_repository_and_the_token_into_one_header(server: StandIn, tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    done = push(tmp_path, server.url, "mine.safetensors", OWN)
    assert done.returncode == 0, done.stderr
    assert server.private == {OWN: True}
    assert done.stdout == f"{server.url}/{OWN}: Policy v9 for toy by dqn, private\n"
    (commit,) = server.of("/commit/")
    lines = [json.loads(line) for line in commit.body.splitlines()]
    assert [(line["key"], line["value"].get("path")) for line in lines[1:]] == [
        ("lfsFile", "policy.safetensors"),
        ("file", "README.md"),
    ]
    readme = base64.b64decode(lines[2]["value"]["content"]).decode()
    assert "# dqn on toy" in readme and f"hf download {OWN} policy.safetensors" in readme
    (sent,) = (request for request in server.requests if request.method == "PUT")
    for request in server.requests:
        others = {name: value for name, value in request.headers.items() if name != "authorization"}
        assert TOKEN not in f"{request.path}{others}" and TOKEN.encode() not in request.body
        assert str(tmp_path).encode() not in request.body
        assert ("authorization" in request.headers) == (request is not sent)
    assert b"/home/somebody" not in sent.body and b"arm.urdf" in sent.body
    assert b"secret-of-a-sink" not in sent.body
    assert TOKEN not in done.stdout + done.stderr


@needs_hub
def test_only_on_request_is_it_public(server: StandIn, tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    assert push(tmp_path, server.url, "mine.safetensors", OWN, "--public").returncode == 0
    assert server.private == {OWN: False}
    server.requests.clear()
    done = push(tmp_path, server.url, "mine.safetensors", OWN)
    assert done.returncode == 3 and "is public: add --public" in done.stderr and done.stderr.count("\n") == 1
    assert not server.of("/commit/") and not server.of("/lfs/")


@needs_hub
def test_a_private_repository_becomes_public_when_everything_is_there(server: StandIn, tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    server.private[OWN] = True
    assert push(tmp_path, server.url, "mine.safetensors", OWN, "--public").returncode == 0
    paths = [request.path for request in server.requests]
    assert server.private == {OWN: False} and "/commit/" in paths[-2] and "/settings" in paths[-1]


@needs_hub
@pytest.mark.parametrize(
    ("token", "repository", "status", "words"),
    [
        ("", OWN, 3, "set HF_TOKEN, or log in with `hf auth login`"),
        ("hf_another", OWN, 1, "the token is not valid"),
        (TOKEN, FOREIGN, 1, "the token is not allowed to write there"),
        (TOKEN, "no-owner", 2, "is not a repository: write OWNER/NAME"),
    ],
)
def test_what_is_wrong_is_one_line(token: str, repository: str, status: int, words: str, server: StandIn, tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    done = push(tmp_path, server.url, "mine.safetensors", repository, token=token)
    assert (done.returncode, done.stdout) == (status, "") and words in done.stderr
    assert done.stderr.count("\n") == 1 and not (token and token in done.stderr)
    assert not server.of("/commit/")


@needs_hub
def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    with socket.socket() as nobody:  # bound, so that nobody else gets the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        done = push(tmp_path, f"http://127.0.0.1:{nobody.getsockname()[1]}", "mine.safetensors", OWN)
    assert done.returncode == 1 and "cannot be reached" in done.stderr and done.stderr.count("\n") == 1


def test_without_the_library_one_line_says_what_to_install(tmp_path: Path) -> None:
    make_exported(tmp_path / "mine.safetensors")
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError('not here')")
    paths = os.pathsep.join([str(tmp_path), child_environment().get("PYTHONPATH", "")])
    command = [sys.executable, "-P", "-m", "deploy.cli.main", "push", "mine.safetensors", OWN]
    done = subprocess.run(
        command, cwd=tmp_path, env=child_environment() | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert "needs huggingface_hub, which is not installed: " in done.stderr and done.stderr.endswith(("[hub]'\n", '[hub]"\n'))


def test_an_error_of_the_library_is_said_without_the_token() -> None:
    class Answer(Exception):
        server_message = f"denied for Bearer {TOKEN}"

        def __init__(self, status: int) -> None:
            self.response = type("Response", (), {"status_code": status})()

    assert hub.said(Answer(500), TOKEN) == "the server answered 500: denied for Bearer (token)"
    assert TOKEN not in hub.said(OSError(f"Authorization: Bearer {TOKEN}"), TOKEN)
