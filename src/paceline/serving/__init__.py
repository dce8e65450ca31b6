"""The HTTP server, and batches of requests in files."""
