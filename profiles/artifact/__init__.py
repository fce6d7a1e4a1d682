"""The model artifact on disk: its manifest, its folder, its checks, and the layout of a query's inputs.

Needs no TVM. The compiler writes artifacts; the scheduler's profiles, the server and the commands read them.
"""
