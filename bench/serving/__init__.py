"""The daemon under load: mixes of models beside its peers, what it adds to a query, and how steady the machine is.

The other folders of `bench` take the daemon as a process (`daemon`) and the models of a mix (`mix`) from here.
"""
