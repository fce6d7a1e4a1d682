"""Files with 8-bit numbers: which nodes carry them, and embedding tables that they hold."""
