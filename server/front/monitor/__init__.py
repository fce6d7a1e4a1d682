"""What an operator sees of the daemon: the dashboard with its stream, the last hour, events, and a page per model."""
