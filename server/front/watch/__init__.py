"""Whether the engine is alive: a process can live and not answer."""
