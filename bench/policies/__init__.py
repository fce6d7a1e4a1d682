"""The policies of the daemon beside each other, with enough seeds to tell how sure a difference is."""
