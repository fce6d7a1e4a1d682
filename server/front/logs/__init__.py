"""What the front logs on request: a line for each request, and one for each burst of refusals."""
