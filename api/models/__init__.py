"""What goes over the wire: pydantic models of requests (unknown fields refused) and of responses."""
