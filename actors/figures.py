"""The figures of an evaluation, each once: its name, how it reads, and where it is shown.

The evaluator's records and log line, sinks, status.json, `headrace top`, the page, the card of a policy, suites and sweeps read
this list. A new figure is a line here, and one where it is measured: `summarise` in actors/evaluation/summary.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from transport.text import amount

Form = Literal["count", "number", "percent", "bytes"]
Place = Literal["log", "status", "page", "objective"]


class Figure(NamedTuple):
    """A number that a process reports. `tag` is its name in TensorBoard and the other sinks; an empty text means: not there."""

    name: str  # its key in the records of the process
    form: Form = "number"
    word: str = ""  # its name in the log, and in the files of a suite
    tag: str = ""
    shown: tuple[Place, ...] = ()  # the page keeps its history; a sweep may take it as its objective
    chart: str = ""  # the title of its own chart on the page, which is then one of the places
    training: str = ""  # the figure of the actors that is drawn beside it
    card: str = ""  # its row on the card of a policy

    @property
    def stem(self) -> str:
        """The beginning of the names of its spread: `return` of return_mean, for return_std, return_min and return_max."""
        return self.name.removesuffix("_mean").removesuffix("_rate")

    def text(self, value: float) -> str:
        """The value as people read it."""
        if self.form == "percent":
            return f"{value:.0%}"
        return f"{value:,.0f}" if self.form in ("count", "bytes") else amount(value)


EVALUATION = (
    Figure("policy_version", "count", shown=("status", "page")),
    Figure("episodes", "count", shown=("status", "page")),
    Figure("return_mean", "number", "return", "eval/mean_reward", ("log", "status", "objective"), "Return",
           "actors.episode_return", "return"),
    *(Figure(f"return_{spread}", shown=("page",)) for spread in ("std", "min", "max")),
    Figure("length_mean", "count", "length", "eval/mean_ep_length", (), "Episode length", "actors.episode_length"),
    Figure("score_mean", "number", "score", "eval/mean_score", ("status", "page", "objective"),
           card="score, the environment's own figure"),
    Figure("success_rate", "percent", "success", "eval/success_rate", ("log", "status", "objective"), "Success",
           "actors.success_rate", "success"),
    Figure("broken_episodes", "count"),
    Figure("best_version", "count", shown=("status",)),
)  # fmt: skip
OBJECTIVES = tuple(figure.name for figure in EVALUATION if "objective" in figure.shown)


def evaluation_line(figures: Mapping[str, Any]) -> str:
    """An evaluation as the log has it: `success 35% · return 1,523.4`. A figure without a value is left out."""
    shown = sorted((one for one in EVALUATION if "log" in one.shown), key=lambda one: one.form != "percent")  # rates come first
    return " · ".join(f"{one.word} {one.text(value)}" for one in shown if (value := figures.get(one.name)) is not None)
