"""How `veltair bench` and `veltair profile` time models: engines in processes of their own, beside each other."""
