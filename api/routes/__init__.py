"""The endpoints, one file a resource family."""
