"""The dashboard: pages without farm data, whose scripts read everything from the REST API."""
