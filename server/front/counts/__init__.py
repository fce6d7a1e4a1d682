"""What the front keeps of counts that are not of one request: totals of engines, and of versions of models."""
