"""Mitsuba 3, always in a child process: what runs there, and what proves that a variant works."""
