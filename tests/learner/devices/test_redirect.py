"""Code that says cuda, on the CPU and on meta."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learner.devices import redirect
from learner.devices.capabilities import Capabilities
from learner.devices.redirect import redirected

ROOT = Path(__file__).resolve().parents[3]
CPU, META = torch.device("cpu"), torch.device("meta")
CUDA = torch.device("cuda")  # made outside any context

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

import beside

torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0")
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).cuda()
head = nn.Linear(2, 2, device="cuda").to("cuda:0")
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-2)
weights = torch.ones(2, device=device)
assert weights.is_cuda
losses = []
for step in range(int(sys.argv[1])):
    images = torch.randn(16, 1, 8, 8).pin_memory().cuda(non_blocking=True)
    labels = torch.arange(16, pin_memory=True).remainder(2).to(device, non_blocking=True)
    images = images + labels[:, None, None, None]
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(head(model(images)), labels, weight=weights)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
state = {key: value.cpu() for key, value in model.state_dict().items()}
"""
ENDING = """
assert beside.HERE == "beside the script"
print(__name__, sys.argv[1:], losses[0].device, float(losses[-1]) < float(losses[0]))
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text('HERE = "beside the script"\n')
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def launched(*arguments: object, module: str = "learner.devices.redirect") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)] if module else [sys.executable, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.slow
def test_a_script_for_cuda_runs_unchanged_with_its_arguments_its_folder_and_its_exit_status(script: Path) -> None:
    script.write_text(SCRIPT + ENDING)
    done = launched("--device", "cpu", script, "30", "--device", "mine")
    assert done.stdout == "__main__ ['30', '--device', 'mine'] cpu True\n", done.stderr
    assert done.returncode == 7
    if not torch.cuda.is_available():
        assert launched(script, "1", module="").returncode == 1, "it says nothing of cuda"


def test_on_meta_the_same_script_computes_shapes_alone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "3"])
    monkeypatch.syspath_prepend(str(script.parent))
    script.write_text(SCRIPT.replace("value.cpu()", "value"))
    with redirected(META):
        made = runpy.run_path(str(script))
    tensors = [*made["losses"], *made["state"].values(), made["images"], made["labels"], *made["head"].parameters()]
    assert len(made["losses"]) == 3 and {tensor.device for tensor in tensors} == {META}
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in made["model"].parameters())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--device", "cpu"], []], ids=["cpu", "auto"])
def test_an_error_of_the_script_is_its_own(script: Path, arguments: list[str]) -> None:
    script.write_text("raise ValueError('mine')\n")
    done = launched(*arguments, script)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: mine\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "there is no script nowhere.py"),
        (["--device", "tpu", __file__], "--device: no device is called 'tpu'"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert redirect.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


WAYS = {
    "cuda": lambda: torch.ones(2).cuda(),
    "cuda of a number": lambda: torch.ones(2).cuda(0, non_blocking=True),
    "to a word": lambda: torch.ones(2).to("cuda:1", torch.float64, non_blocking=True),
    "to a number": lambda: torch.ones(2).to(0),
    "to by name": lambda: torch.ones(2).to(device="cuda", copy=True),
    "to a device from before": lambda: torch.ones(2).to(CUDA),
    "factory": lambda: torch.zeros(2, device="cuda", pin_memory=True),
    "factory by number": lambda: torch.zeros(2, device=0),
    "tensor": lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
    "like": lambda: torch.randn_like(torch.ones(2), device=CUDA),
    "new": lambda: torch.ones(2).new_zeros(2, device="cuda"),
    "module": lambda: nn.Linear(2, 2).cuda().weight,
    "module to": lambda: nn.Linear(2, 2).to("cuda", torch.float64).weight,
    "module to a number": lambda: nn.Linear(2, 2).to(0).weight,
    "module made there": lambda: nn.LSTM(2, 2, device="cuda").weight_ih_l0,
    "to_empty": lambda: nn.Linear(2, 2).to_empty(device="cuda").weight,
    "buffers": lambda: nn.BatchNorm2d(2).cuda().running_mean,
    "device by type": lambda: torch.ones(2, device=torch.device(type="cuda", index=1)),
    "within a device": lambda: within("cuda"),
    "loader": lambda: next(iter(DataLoader(TensorDataset(torch.ones(4)), 2)))[0].cuda(non_blocking=True),
}


def within(name: str) -> torch.Tensor:
    with torch.device(name):
        return torch.ones(2)


@pytest.mark.parametrize("device", [CPU, META], ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_whatever_says_cuda_means_the_chosen_device(way: Any, device: torch.device) -> None:
    with redirected(device):
        made = way()
        assert made.device == device and made.is_cuda
    assert not made.is_cuda


def test_other_devices_and_words_are_left_alone() -> None:
    with redirected(META):
        here, shapes = torch.ones(2, 2, 2, 2), torch.ones(2, device="meta").to("meta")
        assert here.device == CPU and not here.is_cuda and here.cpu().device == CPU
        assert nn.Linear(2, 2).to("cpu", torch.float64).weight.device == CPU
        assert shapes.device == META and torch.device("cpu") == CPU and torch.device("mps", 0).type == "mps"
        assert torch.einsum("cuda", here).shape == here.shape, "here that word means axes"
        assert here.pin_memory() is here
    with redirected(CPU):
        assert torch.ones(2, device="meta").device == META


def test_the_innermost_decides_and_nothing_is_left_after_it() -> None:
    before = torch.overrides._get_current_function_mode_stack()
    with redirected(CPU):
        with redirected(META):
            assert torch.ones(2, device="cuda").is_meta
            with pytest.raises(ZeroDivisionError), redirected(CPU):
                assert torch.ones(2, device="cuda").device == CPU
                1 / 0  # noqa: B018
            assert torch.ones(2).cuda().is_meta
        assert torch.ones(2).cuda().device == CPU
    assert torch.overrides._get_current_function_mode_stack() == before and not redirect._modes()
    assert torch.device("cuda").type == "cuda"
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.ones(2).cuda()


def test_an_inner_context_for_one_gpu_is_not_redirected_by_an_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirect, "capabilities", lambda device: Capabilities("a stand-in"))

    class Listener(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return kwargs["device"] if func is torch.zeros else func(*args, **(kwargs or {}))

    second = torch.device("cuda", 1)
    with Listener(), redirected(CPU), redirected(second):
        assert torch.zeros(2, device="cuda") == second and torch.device("cuda") == second


def test_it_belongs_to_its_thread() -> None:
    seen: list[object] = []
    with redirected(CPU):
        thread = threading.Thread(target=lambda: seen.append(torch.device("cuda").type))
        thread.start()
        thread.join()
    assert seen == ["cuda"]


@pytest.mark.parametrize("pins", [True, False])
def test_what_is_for_pinned_memory_is_kept_where_there_is_such(pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirect, "capabilities", lambda device: Capabilities("a stand-in", pinned_memory=pins))
    asked: list[tuple[Any, dict[str, Any]]] = []

    class Listener(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append((func, kwargs or {}))
            return func(*args, **({name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}))

    with Listener(), redirected(CPU):
        torch.ones(2).cuda(non_blocking=True)
        torch.ones(2).to("cuda", non_blocking=True)
        torch.zeros(2, device="cuda", pin_memory=True)
    passed = [kwargs for _, kwargs in asked]
    assert [kwargs["non_blocking"] for kwargs in passed if "non_blocking" in kwargs] == [pins, pins]
    assert [kwargs["pin_memory"] for kwargs in passed if "pin_memory" in kwargs] == [pins]


@pytest.mark.parametrize("location", ["cuda", "cuda:1", CUDA, {"cpu": "cuda:0"}, None], ids=str)
def test_what_was_saved_for_a_gpu_is_loaded_where_it_is_wanted(location: Any) -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.arange(3.0), "step": 5}, file)
    saved = file.getvalue()
    for device in (CPU, META):
        with redirected(device):
            loaded = torch.load(io.BytesIO(saved), map_location=location, weights_only=True)
        assert loaded["step"] == 5 and loaded["weight"].device == (device if location else CPU)
        if loaded["weight"].device == CPU:
            assert loaded["weight"].tolist() == [0, 1, 2]
    if location and not torch.cuda.is_available():
        with pytest.raises(Exception, match="CUDA"):
            torch.load(io.BytesIO(saved), map_location=location, weights_only=True)


IDIOMS = {
    "choice": "device = 'cuda' if torch.cuda.is_available() else 'cpu'; print(device, torch.zeros(2, device=device).is_cuda)",
    "seeds": "torch.cuda.manual_seed(1); torch.cuda.manual_seed_all(2); print(torch.initial_seed())",
    "names": "print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])",
    "wait": "torch.cuda.synchronize(); torch.cuda.synchronize('cuda'); print('waited')",
    "current": "torch.cuda.set_device(0)\nwith torch.cuda.device(0): print(torch.cuda.current_device())",
    "memory": (
        "torch.cuda.empty_cache(); free, total = torch.cuda.mem_get_info()\n"
        "print(0 < free <= total, torch.cuda.memory_allocated())"
    ),
    "timing": (
        "a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2)); a.record(); time.sleep(0.01); b.record()\n"
        "torch.cuda.synchronize(); print(a.elapsed_time(b) >= 10)"
    ),
    "streams": (
        "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side): one = torch.ones(1, device='cuda')\n"
        "torch.cuda.current_stream().wait_stream(side); side.synchronize(); print(one.item())"
    ),
    "prefetch": (
        "side = torch.cuda.Stream()\nwith torch.cuda.stream(side): batch = torch.ones(1).cuda(non_blocking=True)\n"
        "torch.cuda.current_stream().wait_stream(side); batch.record_stream(torch.cuda.current_stream()); print(batch.item())"
    ),
    "random state": (
        "kept = torch.cuda.get_rng_state_all(), torch.cuda.get_rng_state()\n"
        "with torch.random.fork_rng(): first = torch.rand(2, device='cuda')\n"
        "second = torch.rand(2, device='cuda'); torch.cuda.set_rng_state_all(kept[0]); third = torch.rand(2, device='cuda')\n"
        "torch.cuda.set_rng_state(kept[1], 'cuda')\n"
        "print(*(torch.equal(first, other) for other in (second, third, torch.rand(2).cuda())))"
    ),
    "mixed": (
        "model = torch.nn.Linear(2, 1).cuda(); optimiser = torch.optim.SGD(model.parameters(), 0.1)\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "with torch.autocast('cuda', dtype=torch.float16): loss = model(torch.ones(4, 2, device='cuda')).sum()\n"
        "scaler.scale(loss).backward(); scaler.unscale_(optimiser); scaler.step(optimiser); scaler.update(); print(loss.dtype)"
    ),
    "bfloat16": (
        "able = torch.cuda.is_bf16_supported(); dtype = torch.bfloat16 if able else torch.float16\n"
        "with torch.cuda.amp.autocast(dtype=dtype): print((torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype)"
    ),
    "properties": "found = torch.cuda.get_device_properties(0); print(found.name, found.total_memory > 0)",
}
ANSWERS = {
    "choice": "cuda True",
    "seeds": "2",
    "names": "['CPU']",
    "wait": "waited",
    "current": "0",
    "memory": "True 0",
    "timing": "True",
    "streams": "1.0",
    "prefetch": "1.0",
    "random state": "True True True",
    "mixed": "torch.float32",  # a CPU has no float16
    "bfloat16": "torch.bfloat16",
    "properties": "CPU True",
}


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.*:FutureWarning")
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_of_cuda_take_that_branch(idiom: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if idiom == "random state" and not hasattr(torch.cpu, "get_rng_state"):
        pytest.skip("torch 2.4 forks no random state of a CPU")
    script = tmp_path / "script.py"
    script.write_text(f"import time, torch\n{IDIOMS[idiom]}\n")
    available, seed = torch.cuda.is_available, torch.initial_seed()
    assert redirect.main(["--device", "cpu", str(script)]) == 0
    assert capsys.readouterr().out.strip() == ANSWERS[idiom]
    assert torch.cuda.is_available is available, "torch is as before"
    torch.manual_seed(seed)
