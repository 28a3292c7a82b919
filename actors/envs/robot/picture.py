"""Pictures of an arm without a renderer: one pose and its target, or the workspace with the targets by tier."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

from actors.drawing import new_figure, pixels
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import TIERS, Targets

INK, FAINT, PAPER = (30, 30, 30), (205, 205, 205), (255, 255, 255)  # RGB, as all colours here
ARM, TARGET = (225, 160, 20), (215, 40, 40)
TIER_COLOURS = {"easy": "tab:green", "medium": "tab:blue", "hard": "tab:purple"}
ARM_COLOUR = "goldenrod"
FRAME_PIXELS = 320  # a panel's side
MARGIN = 44
SLICE_METRES = 0.1  # half the thickness of what a map of the workspace shows


class _Panel(NamedTuple):
    """A square picture of two axes, and the map from metres to its pixels."""

    canvas: np.ndarray
    across: int
    up: int
    low: np.ndarray  # [2] metres at the lower left corner
    scale: float  # pixels per metre

    def pixels(self, positions: np.ndarray) -> np.ndarray:
        """[N, 2] int32 of positions [N, 3]."""
        along, high = (
            (positions[:, axis] - low) * self.scale for axis, low in zip((self.across, self.up), self.low, strict=True)
        )
        side = len(self.canvas)
        return np.stack([MARGIN + along, side - MARGIN - high], axis=1).round().astype(np.int32)


def draw_arm(kinematics: Kinematics, q: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[H, W, 3] RGB uint8: the arm at q [6] and its target [3], from the side and from above."""
    reach = _reach(kinematics)
    panels = []
    for title, across, up in (("side", 0, 2), ("top", 0, 1)):
        panel = _panel(title, across, up, reach, FRAME_PIXELS)
        _draw_links(panel, kinematics, q)
        place = panel.pixels(target[None])[0].tolist()
        cv2.circle(panel.canvas, place, 5, TARGET, -1, cv2.LINE_AA)
        panels.append(panel.canvas)
    return np.hstack(panels)


def draw_workspace(kinematics: Kinematics, targets: Targets) -> np.ndarray:
    """[H, W, 3] RGB uint8: slices through the cached targets, coloured by tier, and the arm at home. Raises EnvError."""
    reach, home = _reach(kinematics), kinematics.flange(kinematics.arm.home[None])[0]
    near, far = targets.edges
    spans = (f"below {near:.2f} m", f"{near:.2f} to {far:.2f} m", f"above {far:.2f} m")
    bones = _bones(kinematics, kinematics.arm.home)
    figure = new_figure(13, 7)
    figure.suptitle(f"{kinematics.arm.name.replace('_', ' ')}: workspace, tiers by the distance from the flange at home")
    for axes, (title, across, up, flat) in zip(
        figure.subplots(1, 2), (("side view", 0, 2, 1), ("top view", 0, 1, 2)), strict=True
    ):
        inside = np.abs(targets.positions[:, flat] - home[flat]) < SLICE_METRES
        for number, (tier, span) in enumerate(zip(TIERS, spans, strict=True)):
            shown = targets.positions[inside & (targets.tier == number)]
            label = f"{tier}, {span}: {int((targets.tier == number).sum()):,} targets"
            axes.scatter(shown[:, across], shown[:, up], s=2, color=TIER_COLOURS[tier], label=label)
        axes.plot(bones[:, across], bones[:, up], "-o", color=ARM_COLOUR, linewidth=4, markeredgecolor="black")
        slab = f"{'xyz'[flat]} = {home[flat]:.2f} ± {SLICE_METRES:.2f} m"
        axes.set(
            title=f"{title}, {slab}: {int(inside.sum()):,} targets", xlabel=f"{'xyz'[across]} (m)", ylabel=f"{'xyz'[up]} (m)"
        )
        axes.set(aspect="equal", xlim=(-reach, reach), ylim=(-0.1 * reach, 1.9 * reach) if up == 2 else (-reach, reach))
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(TIERS), markerscale=5)
    return pixels(figure)


def describe(kinematics: Kinematics, targets: Targets) -> list[str]:
    """Lines of text about the workspace and its tiers."""
    positions, training = targets.positions, targets.training
    low, high = positions.min(0), positions.max(0)
    spans = ", ".join(f"{axis} {a:.2f} to {b:.2f}" for axis, a, b in zip("xyz", low, high, strict=True))
    lines = [
        f"arm {kinematics.arm.name} ({kinematics.arm.digest[:8]}): {len(positions):,} targets, {training:,} for training and "
        f"{len(positions) - training:,} for evaluation",
        f"  workspace in metres: {spans}; tiers by the distance from the flange at home:",
    ]
    distance = _distance_from_home(kinematics, positions)
    for number, tier in enumerate(TIERS):
        own = distance[targets.tier == number]
        if len(own):
            p5, p50, p95 = np.percentile(own, (5, 50, 95))
            span = f"{own.min():.3f} to {own.max():.3f} m, 5/50/95 % at {p5:.3f}/{p50:.3f}/{p95:.3f} m"
            lines.append(f"  {tier:<6} {len(own):>6,} targets, {span}")
    return lines


def _distance_from_home(kinematics: Kinematics, positions: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(positions - kinematics.flange(kinematics.arm.home[None]), axis=1))


def _reach(kinematics: Kinematics) -> float:
    """The arm's reach in metres, with a margin: a panel shows this much to each side."""
    arm = kinematics.arm
    return float(np.linalg.norm(arm.offset[1:], axis=1).sum() + np.linalg.norm(arm.tip)) * 1.06


def _panel(title: str, across: int, up: int, reach: float, side: int) -> _Panel:
    """An empty panel with a grid and metres along its edges; z begins a little below the floor."""
    low = np.array([-reach, -reach])
    if up == 2:
        low[1] = -0.1 * reach
    panel = _Panel(np.full((side, side, 3), PAPER, np.uint8), across, up, low, (side - 2 * MARGIN) / (2 * reach))
    step = 0.25 if reach < 1.2 else 0.5 if reach < 2.5 else 1.0
    size = 0.36
    for number in range(-20, 21):
        value = number * step
        for axis in (0, 1):
            if low[axis] <= value <= low[axis] + 2 * reach:
                far = int((value - low[axis]) * panel.scale)
                floor = axis == 1 and up == 2 and number == 0
                colour, width = (INK, 2) if floor else (FAINT, 1)
                if axis == 0:
                    cv2.line(panel.canvas, (MARGIN + far, MARGIN), (MARGIN + far, side - MARGIN), colour, width)
                    _write(panel.canvas, f"{value:g}", (MARGIN + far - 12, side - MARGIN + 15), size)
                else:
                    cv2.line(panel.canvas, (MARGIN, side - MARGIN - far), (side - MARGIN, side - MARGIN - far), colour, width)
                    _write(panel.canvas, f"{value:g}", (6, side - MARGIN - far + 4), size)
    _write(panel.canvas, title, (MARGIN, 20), size)
    _write(panel.canvas, f"{'xyz'[across]} (m)", (side - MARGIN - 34, side - 10), size)
    _write(panel.canvas, f"{'xyz'[up]} (m)", (4, MARGIN - 10), size)
    return panel


def _bones(kinematics: Kinematics, q: np.ndarray) -> np.ndarray:
    """[joints + 2, 3] metres: base, joints and flange."""
    pose = kinematics.pose(q[None], points=False)
    return np.concatenate([np.zeros((1, 3)), pose.joint[:, 0], pose.flange])


def _draw_links(panel: _Panel, kinematics: Kinematics, q: np.ndarray) -> None:
    """Draws the links as lines from the base to the flange, and the joints as dots."""
    bones = panel.pixels(_bones(kinematics, q))
    width = 5
    cv2.polylines(panel.canvas, [bones.reshape(-1, 1, 2)], False, INK, width + 2, cv2.LINE_AA)
    cv2.polylines(panel.canvas, [bones.reshape(-1, 1, 2)], False, ARM, width, cv2.LINE_AA)
    for place in bones.tolist():
        cv2.circle(panel.canvas, place, width // 2 + 1, INK, -1, cv2.LINE_AA)


def _write(canvas: np.ndarray, text: str, place: tuple[int, int], size: float) -> None:
    cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, INK, 1, cv2.LINE_AA)
