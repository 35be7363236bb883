"""``python -m jobs.render.mitsuba.probe VARIANT``: render a small scene; exit status 0 if it looks right."""

from __future__ import annotations

import os
import sys
from typing import Any


def main(variant: str) -> int:
    """0 where the variant renders the Cornell box with light in it, 1 with the reason on stderr."""
    import mitsuba
    import numpy as np

    mi: Any = mitsuba
    mi.set_variant(variant)
    wanted = mi.cornell_box()
    wanted["sensor"]["film"]["width"] = wanted["sensor"]["film"]["height"] = 24
    wanted["gold"] = {"type": "sphere", "radius": 0.2, "bsdf": {"type": "roughconductor", "alpha": 0.2}}
    wanted["glass"] = {"type": "sphere", "radius": 0.2, "center": [0.5, 0, 0], "bsdf": {"type": "dielectric"}}
    image = np.array(mi.render(mi.load_dict(wanted), spp=4))
    if not np.isfinite(image).all() or not 0.02 < float(image.mean()) < 5.0:
        print(f"the probe's picture is wrong: mean {float(image.mean())}", file=sys.stderr)
        return 1
    print(f"{variant} rendered the probe")
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv[1])
    except Exception as error:  # noqa: BLE001  whatever goes wrong is the answer
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
