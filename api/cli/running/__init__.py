"""How `farm up` runs the farm's processes on one machine, and how each of them is run alone."""
