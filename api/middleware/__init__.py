"""What stands around every request, one concern a file, as plain ASGI."""
