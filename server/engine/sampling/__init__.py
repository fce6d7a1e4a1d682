"""What the engine reads of the machine from time to time, and tells the scheduler of."""
