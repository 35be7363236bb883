"""Starts the child in Blender's Python: ``python start.py`` or ``blender --python start.py``.

Only the folder beside this file goes on the path, so that nothing of the farm can be imported.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    importlib.import_module("program.child").main()
