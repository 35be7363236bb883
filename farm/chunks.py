"""How many frames a task should hold, from what frames were measured to take; pure.

The same rule cuts a step's first chunks where something was measured before, and the rest of a chunk whose
frames turn out far slower than planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

SLOW_FRAME_S: Final = 60.0
"""A frame that takes longer than this travels alone: a lost slot then costs one frame."""
MAX_CHUNK: Final = 1000
OVER_PLAN: Final = 2.0
"""The rest of a chunk is split off when it would take more than so many chunks' time."""
_SMALLEST_FRAME_S: Final = 0.02


def chunk_size(frame_s: float, target_s: float) -> int:
    """Frames per task, at least 1, for frames of ``frame_s`` seconds and tasks of about ``target_s``."""
    frame_s = max(frame_s, _SMALLEST_FRAME_S)
    if frame_s >= SLOW_FRAME_S:
        return 1
    return max(1, min(MAX_CHUNK, math.ceil(target_s / frame_s)))


def runs_over(times: Sequence[float], left: int, target_s: float) -> bool:
    """Whether a running chunk should end here, so that its ``left`` frames not begun go on elsewhere.

    ``times`` are the seconds that the attempt's frames took so far. The next frames are expected to take as
    long as the last one did: neighbours in a shot are alike. An attempt's first frame may have warmed the
    renderer up, so by itself it tells only when it alone took longer than the rest may.
    """
    if left < 2 or not times:
        return False
    limit = OVER_PLAN * target_s
    return times[-1] * left > limit and (len(times) > 1 or times[0] > limit)
