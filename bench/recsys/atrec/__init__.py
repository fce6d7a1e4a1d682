"""The gains of AtRec's fusions, subgraph by subgraph."""
