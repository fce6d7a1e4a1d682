"""Models of graphs: convolutions over a whole graph or over sampled neighbours, messages, and scores of triples."""
