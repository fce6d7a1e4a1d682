"""The pure scheduler: events in, decisions out."""
