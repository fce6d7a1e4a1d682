"""The log of all processes of the daemon: lines of text or of JSON on stderr, written beside what serves."""
