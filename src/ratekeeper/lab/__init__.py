"""The lab: try a limit on simulated or recorded traffic before it refuses a real client.

>>> from ratekeeper import lab
>>> simulation = lab.simulate("10/second", "boundary", algorithms=["fixed_window", "gcra"])
>>> [(lane.algorithm, lane.worst_window, lane.worst_window_ratio) for lane in simulation.lanes]
[('fixed_window', 20, 2.0), ('gcra', 10, 1.0)]
"""

from ratekeeper.lab.compare import Comparison
from ratekeeper.lab.outcome import Replay
from ratekeeper.lab.replay import replay
from ratekeeper.lab.simulate import Lane, Simulation, simulate
from ratekeeper.lab.suggest import Suggestion
from ratekeeper.lab.trace import load_trace
from ratekeeper.lab.traffic import SHAPES, ClientRetry, Traffic, recorded, traffic

__all__ = [
    "Comparison",
    "Lane",
    "Replay",
    "ClientRetry",
    "SHAPES",
    "Simulation",
    "Suggestion",
    "Traffic",
    "load_trace",
    "recorded",
    "replay",
    "simulate",
    "traffic",
]
