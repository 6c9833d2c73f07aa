"""Pictures (PNG, SVG, PDF), drawn by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.files import check_writable
from ratekeeper.lab.text import lane_cells

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ratekeeper.lab.outcome import Replay
    from ratekeeper.lab.simulate import Simulation

# Told apart by people who see colours differently, on white and on black.
ADMITTED, REFUSED, ASKED = "#2a9d8f", "#e76f51", "#8d99ae"
FORMATS = (".png", ".svg", ".pdf")


def figure(size: tuple[float, float]) -> Any:
    """A matplotlib figure that needs no screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput("plot: expected matplotlib to be installed. Run: pip install 'ratekeeper[lab]'") from error
    return Figure(figsize=size, layout="constrained")


def picture_path(path: str | Path) -> str:
    name = str(path)
    if not name.lower().endswith(FORMATS):
        raise InvalidInput(f"plot {name!r}: expected a name that ends in {', '.join(FORMATS)}.")
    check_writable(name)
    return name


def save_lanes(simulation: Simulation, path: str | Path) -> None:
    """Draw the lanes, one below the other, into a PNG, SVG or PDF file."""
    name = picture_path(path)
    lanes = simulation.lanes
    drawn = figure((11, 1.2 + 1.5 * len(lanes)))
    axes = drawn.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, lane in zip(axes, lanes, strict=True):
        seconds = [number * lane.bin_seconds for number in range(len(lane.asked_in_bin))]
        draw_stack(axis, seconds, lane.bin_seconds, lane.admitted_in_bin, lane.refused_in_bin)
        axis.set_title(
            f"{lane_cells(lane)[0]}:  {lane.admitted:,} admitted, {lane.refused:,} refused, "
            f"worst window {lane.worst_window_ratio:.2f} x",
            loc="left",
            fontsize=9,
        )
    axes[0].legend(loc="upper right", fontsize=8, frameon=False, ncols=2)
    axes[-1].set_xlabel("seconds")
    drawn.suptitle(f"{simulation.traffic.name}: {len(simulation.traffic):,} calls", fontsize=11)
    drawn.savefig(name, dpi=130)


def draw_stack(axis: Any, starts: list[float], width: float, admitted: Sequence[int], refused: Sequence[int]) -> None:
    axis.bar(starts, admitted, width, align="edge", color=ADMITTED, label="admitted", linewidth=0)
    axis.bar(starts, refused, width, bottom=admitted, align="edge", color=REFUSED, label="refused", linewidth=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlim(0, starts[-1] + width if starts else 1)


def save_replay(replay: Replay, path: str | Path) -> None:
    """Draw the course of a replay, and who was refused, into a PNG, SVG or PDF file."""
    name = picture_path(path)
    drawn = figure((11, 6))
    over, below = drawn.subplots(2, 1, height_ratios=[3, 2])
    starts = [number * replay.bin_seconds / 3600 for number in range(len(replay.asked_in_bin))]
    admitted = [asked - lost for asked, lost in zip(replay.asked_in_bin, replay.refused_in_bin, strict=True)]
    draw_stack(over, starts, replay.bin_seconds / 3600, admitted, replay.refused_in_bin)
    over.set_xlabel(f"hours since {replay.bins_at}")
    over.set_title(f"{replay.requests:,} requests, {replay.refused:,} refused", loc="left", fontsize=10)
    over.legend(loc="upper right", fontsize=8, frameon=False, ncols=2)
    ranks = [rank.rank for rank in replay.ranks]
    shares = [100 * rank.clients_refused / max(1, rank.clients) for rank in replay.ranks]
    below.barh(ranks, shares, color=REFUSED)
    below.invert_yaxis()
    below.set_xlim(0, 100)
    below.set_title(
        "clients that are ever refused, in percent of their rank by busiest minute", loc="left", fontsize=10
    )
    below.spines[["top", "right"]].set_visible(False)
    drawn.savefig(name, dpi=130)
