"""Commands that describe all commands to a shell: scripts that complete them, and the man page."""
