"""The models that an engine serves, and how they come and go."""
