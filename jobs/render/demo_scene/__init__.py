"""The still life that `make demo` turns: made by `make_scene.py`, owned by this project."""
