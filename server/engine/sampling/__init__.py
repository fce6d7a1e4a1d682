"""What the engine looks at from time to time: counters and clocks, of which it tells the scheduler, and hung blocks."""
