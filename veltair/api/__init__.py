"""What `import veltair` offers to Python: compile, load, serve, ask, load-test, simulate.

One module a verb. The command line is a layer over the same functions; `veltair` itself imports a module of this folder
when one of its names is first used.
"""
