"""Celery over Redis or Valkey: tickets to slots, wakes between processes, and a broker of our own."""
