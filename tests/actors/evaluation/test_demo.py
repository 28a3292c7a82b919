"""A policy on film."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np
import pytest
import tomli_w
import torch

from actors.config import ActorsConfig, EnvConfig
from actors.envs.make import env_section, make_env
from actors.envs.spec import experience_spec
from actors.errors import EnvError
from actors.evaluation.demo import main
from actors.evaluation.options import DemoOptions, to_arguments
from actors.evaluation.video import film
from actors.evaluation.video.film import Filmed, Frames, Recorder
from actors.evaluation.video.overlay import PANEL_WIDTH
from actors.evaluation.video.terminal import SHOW, UPPER
from actors.evaluation.video.window import DISPLAYS
from benchmarks.common.settings import write_settings
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.weights import checkpoint
from tests.actors.evaluation.video.test_terminal import Screen
from transport.experience import write_spec
from transport.run_dir import RunDir

OLDER = Path(__file__).parents[2] / "headrace" / "older" / "format1-dqn.safetensors"


class Painted(gymnasium.Env):
    """Episodes of 9 steps; the picture's brightness is the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode: str | None = "rgb_array"
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, self.now == 9, False, {"is_success": True}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((48, 64, 3), 20 * self.now, np.uint8)


class Unseen(Painted):
    render_mode = None


class InText(Painted):
    """Is drawn in letters only."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"there is no render mode {render_mode}")


class Torn(Painted):
    def render(self) -> np.ndarray:  # type: ignore[override]
        raise ZeroDivisionError("no canvas\nis left")


class Breaks(Painted):
    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.now == 4:
            raise ValueError("no such level")
        return super().step(action)


def make_run(path: Path, env_id: str) -> RunDir:
    run = RunDir(path)
    run.create()
    env, algorithm = EnvConfig(id=env_id), DqnConfig(hidden=8)
    spec = experience_spec(make_env(env), env, "none")
    sections = {"env": env_section(env), "algorithm": algorithm, "actors": ActorsConfig()}
    run.config.write_text(tomli_w.dumps({"seed": 1} | msgspec.to_builtins(sections)))
    run.spec.write_bytes(write_spec(spec))
    write_settings(run, {"seed": 1} | msgspec.to_builtins(sections))
    torch.manual_seed(0)  # the bar of this network's action is long
    metadata = {"policy_version": "3", "spec_digest": spec.digest}
    checkpoint.write(run.latest, dict(q_network(spec, algorithm).state_dict()), metadata)
    return run


class Shown(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Shows a run of one of these environments."""

    def show(name: str = "Painted", **options: Any) -> Shown:
        run = make_run(tmp_path / "run", f"{__name__}:{name}")
        return Shown(main(to_arguments(run, DemoOptions(**options))), *capsys.readouterr())

    return show


of_ffmpeg = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def recorded(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The metadata and the frames [H, W, 3] of a video."""
    reader = pytest.importorskip("imageio_ffmpeg").read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    return about, [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


class Loud(Painted):
    def reset(self, **given: Any) -> Any:
        print("\x1b[2Jraw")
        return super().reset(**given)


@pytest.mark.slow
def test_what_a_simulator_prints_is_no_line_of_the_demo_and_goes_where_it_is_made_plain(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", f"{__name__}:Loud")
    command = [sys.executable, "-m", "actors.evaluation.demo", *to_arguments(run, DemoOptions(headless=True, episodes=1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "policy v3: return" in done.stdout and "raw" not in done.stdout and "raw" in done.stderr


def test_every_picture_of_an_episode_is_shown_once_and_its_end_for_longer() -> None:
    seen: list[int] = []
    filmed = Filmed(Painted(), lambda frame: seen.append(int(frame[0, 0, 0]) // 20), repeats=2)
    for _ in range(2):
        filmed.reset()
        while not filmed.step(0)[2]:
            pass
    filmed.reset()
    assert seen == [*range(10), 9, 9, *range(10), 9, 9]


def test_a_picture_may_be_transparent_and_lie_in_memory_in_another_order() -> None:
    drawn = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(5, 6, 4)  # [width, height, red … alpha], as pygame's arrays lie
    seen: list[np.ndarray] = []

    class Turned(Painted):
        def render(self) -> np.ndarray:  # type: ignore[override]
            return drawn.transpose(1, 0, 2)

    filmed = Filmed(Turned(), seen.append)
    filmed.reset()
    filmed.step(0)
    assert seen[0].flags.c_contiguous and np.array_equal(seen[0], drawn.transpose(1, 0, 2)[:, :, :3])


def test_a_render_that_gives_no_picture_is_told_what_it_gave() -> None:
    class Grey(Painted):
        def render(self) -> np.ndarray:  # type: ignore[override]
            return np.zeros((4, 5), np.uint8)

    with pytest.raises(EnvError, match=r"returns no picture but an array of shape \(4, 5\): .*\[height, width, 3\]"):
        Filmed(Grey(), lambda frame: None).reset()


def test_where_ffmpeg_ends_its_command_is_not_the_message() -> None:
    def of_ffmpeg() -> Frames:
        yield
        raise OSError("[Errno 32] Broken pipe\n\nFFMPEG COMMAND:\nffmpeg -y -f rawvideo …")

    def open_for(frame: np.ndarray) -> Frames:
        file = of_ffmpeg()
        next(file)
        return file

    with pytest.raises(EnvError, match="^ffmpeg could not write the video, and says why above"):
        Recorder(open_for).show(np.zeros((4, 4, 3), np.uint8))


@of_ffmpeg
def test_two_episodes_are_recorded(tmp_path: Path, demo: Callable[..., Shown]) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = demo(video=str(tmp_path / "out.mp4"), episodes=2)
    assert done.out.count("policy v3: return 9.00, score 9.00, 9 steps, success") == 2 and "40 pictures" in done.out
    about, frames = recorded(tmp_path / "out.mp4")
    assert about["size"] == (64, 48) and about["fps"] == 10 and len(frames) == 40
    assert frames[9].mean() > frames[1].mean() > frames[0].mean() - 1
    assert frames[19].mean() > frames[9].mean() - 1


@of_ffmpeg
def test_an_environment_that_raises_is_one_line_and_what_was_recorded_is_kept(tmp_path: Path, demo: Callable[..., Shown]) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = demo("Breaks", video=str(tmp_path / "out.mp4"))
    assert done.status == 1 and done.err.count("\n") == 1 and "headrace: ValueError: no such level (" in done.err
    assert "5 pictures" in done.out and (tmp_path / "out.mp4").stat().st_size > 0


@of_ffmpeg
def test_an_overlay_is_recorded_beside_the_pictures(tmp_path: Path, demo: Callable[..., Shown]) -> None:
    pytest.importorskip("imageio_ffmpeg")
    assert demo(video=str(tmp_path / "out.mp4"), episodes=1, overlay=True).status == 0
    about, frames = recorded(tmp_path / "out.mp4")
    assert about["size"] == (64 * 7 + PANEL_WIDTH, 48 * 7) and len(frames) == 20
    panels = [frame[:, -PANEL_WIDTH:].astype(int) for frame in frames]
    orange = [int(((panel[..., 0] > 190) & (panel[..., 2] < 110)).sum()) for panel in panels]
    assert min(orange[:9]) > 50 and max(orange[10:]) == 0  # the action that is taken, until the episode is over


def test_an_environment_with_pictures_has_a_window(demo: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown: list[tuple[tuple[int, int], int]] = []
    flip = pygame.display.flip

    def flipped() -> None:
        flip()
        surface = pygame.display.get_surface()
        shown.append((surface.get_size(), surface.get_at((3, 3))[0]))

    monkeypatch.setattr(pygame.display, "flip", flipped)
    monkeypatch.setattr(film, "MAX_FRAMES_PER_SECOND", 500.0)
    monkeypatch.setitem(Painted.metadata, "render_fps", 500)

    done = demo(episodes=1)
    size = (640, 480)  # ten times as large
    assert shown[:10] == [(size, 20 * step) for step in range(10)] and set(shown[10:]) == {(size, 180)}
    assert not pygame.display.get_init() and "policy v3: return 9.00" in done.out


@pytest.mark.parametrize(
    "lacks",
    [pytest.param("display", marks=pytest.mark.skipif(sys.platform != "linux", reason="others always have one")), "pygame"],
)
def test_without_a_display_or_pygame_pictures_are_in_the_terminal(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    if lacks == "pygame":
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(film, "MAX_FRAMES_PER_SECOND", 500.0)
    monkeypatch.setitem(Painted.metadata, "render_fps", 500)
    screen = Screen()
    run = make_run(tmp_path / "run", f"{__name__}:Painted")
    assert main(to_arguments(run, DemoOptions(episodes=2)), screen) == 0
    text = screen.getvalue()
    assert UPPER in text and text.count("policy v3: return 9.00") == 2
    assert text.rstrip().endswith(SHOW) and text.startswith("in the terminal: a window needs pygame-ce") == (lacks == "pygame")


def test_closing_the_window_ends_the_demo(demo: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    flip = pygame.display.flip
    monkeypatch.setattr(pygame.display, "flip", lambda: (flip(), pygame.event.post(pygame.event.Event(pygame.QUIT))))
    done = demo()
    assert done.status == 0 and "the window was closed" in done.out and "return" not in done.out


@pytest.mark.parametrize(
    ("env", "options", "status", "words"),
    [
        ("Unseen", {}, 2, "cannot be seen"),
        ("Unseen", {"video": "x.mp4"}, 2, "cannot be filmed"),
        ("Torn", {"video": "x.mp4"}, 1, "headrace: ZeroDivisionError: no canvas is left ("),
        ("no pygame", {}, 2, "[window]'"),
        ("no display", {}, 2, "there is no display for a window: record with --video"),
        ("no imageio_ffmpeg", {"video": "x.mp4"}, 2, "[video]'"),
        ("Painted", {"headless": True, "weights": str(OLDER)}, 2, "made for CartPole-v1, with another experience spec"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    env: str,
    options: dict[str, Any],
    status: int,
    words: str,
    tmp_path: Path,
    demo: Callable[..., Shown],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    if env == "no display" and sys.platform != "linux":
        pytest.skip("other systems always have a display")
    if env != "no display":
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    if env in ("no pygame", "no imageio_ffmpeg"):
        monkeypatch.setitem(sys.modules, env.partition(" ")[2], None)
    elif "video" in options:
        pytest.importorskip("imageio_ffmpeg")
    done = demo("Painted" if " " in env else env, **options)
    assert done.status == status and words in done.err.replace('"', "'") and done.err.count("\n") == 1


@pytest.mark.parametrize(("epoch", "said"), [("0", 1), ("7", 0)])
def test_a_demo_shows_several_episodes_and_says_whether_its_weights_are_untrained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epoch: str, said: int
) -> None:
    run = make_run(tmp_path / "run", f"{__name__}:Painted")
    weights, metadata = checkpoint.read(run.latest)
    checkpoint.write(run.latest, weights, metadata | {"epoch": epoch})
    assert main(to_arguments(run, DemoOptions(headless=True))) == 0
    out = capsys.readouterr().out
    assert out.count("policy v3 is untrained") == said and out.count("policy v3: return 9.00") == 3
