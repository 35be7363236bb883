"""Queries that read for the API: rows as dictionaries, lists by keyset, never a whole table.

A list function takes its filters, the key values of the row to stand after (``None``: the first page) and a
limit; it returns at most ``limit`` rows in the order of its key. Callers ask for one more than they show.
Every function takes an open connection (:meth:`farm.db.connect.Database.read`).
"""
