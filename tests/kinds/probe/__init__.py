"""A kind for tests: tasks that behave as they are told. ``FARM_EXTRA_KINDS=probe=tests.kinds.probe``."""
