"""All that may stand in group.consumer.assignors, and in a member's request."""

from __future__ import annotations

from pybroker.coordinator.assignors.range_ import assign_ranges
from pybroker.coordinator.assignors.spec import Assignor
from pybroker.coordinator.assignors.uniform import assign_uniformly

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
