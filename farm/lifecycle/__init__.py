"""The life of tasks: every change of state is made here, in one transaction with its counters and events.

Locks are taken in one order, so that transactions wait and never deadlock: slot, job lock
(:mod:`farm.lifecycle.locks`), task, step, job, project, budget; rows of one table in id order. Dispatch
skips rows that are locked instead of waiting. SQLite has one writer at a time and needs none of it.
"""
