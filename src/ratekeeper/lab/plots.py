"""Plots as PNG, SVG or PDF files, drawn by matplotlib."""

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

__all__ = ["save_lanes"]

# Distinct for colour-blind readers, on white and on black.
ADMITTED, REFUSED, ASKED = "#2a9d8f", "#e76f51", "#8d99ae"
FORMATS = (".png", ".svg", ".pdf")


def figure(size: tuple[float, float]) -> Any:
    """Make a matplotlib figure that needs no screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput("plot: expected matplotlib to be installed. Run: pip install 'ratekeeper[lab]'") from error
    return Figure(figsize=size, layout="constrained")


def check_plot_path(path: str | Path) -> str:
    """Return ``path`` as text; raise if no plot can be written there."""
    name = str(path)
    if not name.lower().endswith(FORMATS):
        raise InvalidInput(f"plot {name!r}: expected a name that ends in {', '.join(FORMATS)}.")
    check_writable(name)
    return name


def save_lanes(simulation: Simulation, path: str | Path) -> None:
    """Draw the lanes one below the other into a PNG, SVG or PDF file."""
    name = check_plot_path(path)
    lanes = simulation.lanes
    plot = figure((11, 1.2 + 1.5 * len(lanes)))
    axes = plot.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
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
    plot.suptitle(f"{simulation.traffic.name}: {len(simulation.traffic):,} calls", fontsize=11)
    plot.savefig(name, dpi=130)


def draw_stack(axis: Any, starts: list[float], width: float, admitted: Sequence[int], refused: Sequence[int]) -> None:
    axis.bar(starts, admitted, width, align="edge", color=ADMITTED, label="admitted", linewidth=0)
    axis.bar(starts, refused, width, bottom=admitted, align="edge", color=REFUSED, label="refused", linewidth=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlim(0, starts[-1] + width if starts else 1)


def save_replay(replay: Replay, path: str | Path) -> None:
    """Draw a replay over time, and which clients it refuses, into a PNG, SVG or PDF file."""
    name = check_plot_path(path)
    plot = figure((11, 6))
    timeline, ranks = plot.subplots(2, 1, height_ratios=[3, 2])
    starts = [number * replay.bin_seconds / 3600 for number in range(len(replay.asked_in_bin))]
    draw_stack(timeline, starts, replay.bin_seconds / 3600, replay.admitted_in_bin, replay.refused_in_bin)
    timeline.set_xlabel(f"hours since {replay.bins_at}")
    timeline.set_title(f"{replay.requests:,} requests, {replay.refused:,} refused", loc="left", fontsize=10)
    timeline.legend(loc="upper right", fontsize=8, frameon=False, ncols=2)
    shares = [100 * rank.clients_refused / max(1, rank.clients) for rank in replay.ranks]
    ranks.barh([rank.rank for rank in replay.ranks], shares, color=REFUSED)
    ranks.invert_yaxis()
    ranks.set_xlim(0, 100)
    ranks.set_title(
        "clients that are refused at least once, in percent of their rank by busiest minute", loc="left", fontsize=10
    )
    ranks.spines[["top", "right"]].set_visible(False)
    plot.savefig(name, dpi=130)
