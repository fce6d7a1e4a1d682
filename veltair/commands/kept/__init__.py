"""The command about what compiles keep on this machine for later ones."""
