from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from learner.config import LearnerConfig
from learner.description import PolicyDescription
from learner.devices import builds, known
from learner.devices import detection as finding
from learner.probe import PolicyQuestion, answer, probe
from tests.learner.examples import make_spec, vector
from transport.experience import write_spec


@pytest.mark.parametrize("card", ["10de:2684", "1002:73bf"])
def test_a_gpu_that_auto_cannot_take_is_told_of_where_the_cpu_takes_its_place(monkeypatch: pytest.MonkeyPatch, card: str) -> None:
    monkeypatch.setattr(finding, "missing", lambda kind: f"{kind} is gone")
    monkeypatch.setattr(known, "installed", lambda: known.Installed("2.13.0", {"cuda", "hip"}))  # so torch is asked
    for name, here, note in (("auto", [card], "cuda is gone"), ("auto", [], ""), ("cpu", [card], "")):
        monkeypatch.setattr(builds, "adapters", lambda root=None, here=here: here)
        assert probe(name, "auto", 1) == {"device": "cpu", "name": "CPU", "note": note, "processes": 1}


def test_what_cannot_be_is_an_error_that_names_the_flag() -> None:
    error = str(probe("toaster", "auto", 1)["error"])
    assert error.startswith("--device: ") and "toaster" in error
    refused = "--learner.precision: precision float16 is not available on cpu: use auto, or float32 or bfloat16"
    assert probe("cpu", "float16", 1) == {"error": refused}


def question(**algorithm: object) -> PolicyQuestion:
    return PolicyQuestion(algorithm, write_spec(make_spec(vector())).decode())


def test_a_policy_is_described_or_refused_in_one_line() -> None:
    described = answer(question(name="dqn", hidden=8))
    assert not described.error and described.policy is not None and described.policy.program is not None
    assert described.policy.tensors["body.torso.1.weight"] == ((8, 4), "float32")
    own = "tests.learner.networks.own"
    by_numpy = PolicyQuestion({"name": "ppo", "memory": "lstm"}, question().spec, LearnerConfig(engine="numpy"))
    assert answer(by_numpy).error.startswith("--learner.engine numpy cannot learn here: images, memories")
    for asked, reason in (
        (question(name="dqn", network=f"{own}:Wrong"), f"network {own}:Wrong fails on vector [1, 4]: KeyError"),
        (question(name="dqn", network="nature"), "network nature cannot be built: it needs an image"),
        (question(name="dqn", network="no.such:Torso"), "network no.such:Torso: there is no module no"),
        (question(name="sac"), "sac chooses vectors of reals"),
        (question(name="no.such:Algorithm"), "there is no module no"),
    ):
        refused = answer(asked)
        assert reason in refused.error and refused.policy is None and "\n" not in refused.error


def test_the_module_answers_a_question_after_it_has_said_what_there_is() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "learner.probe", "cpu", "auto", "4"]
    line = msgspec.json.encode(question(name="ppo", hidden=8))
    child = subprocess.run(command, input=line, capture_output=True)
    first, second = filter(None, child.stdout.splitlines())
    assert json.loads(first) == {"device": "cpu", "name": "CPU", "note": "", "processes": 4}
    assert b" torch._dynamo\n" not in child.stderr, "torch's compiler doubles the time that a process takes to start"
    assert msgspec.convert(json.loads(second)["policy"], PolicyDescription) == answer(question(name="ppo", hidden=8)).policy


@pytest.mark.parametrize(("memory", "imported"), [("", "False"), ("lstm", "True")])
def test_a_learner_that_will_need_torch_imports_it_while_it_waits_for_its_run(memory: str, imported: str) -> None:
    code = "import sys\nfrom learner.probe import serve\nserve('cpu', 'auto', 1)\nprint('torch' in sys.modules)"
    line = msgspec.json.encode(question(name="ppo", memory=memory))
    child = subprocess.run([sys.executable, "-c", code], input=line, capture_output=True)
    assert child.stdout.decode().split()[-1] == imported
