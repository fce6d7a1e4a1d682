"""Many machines with Ray Serve (extra `ray`): a replica is one daemon that has a whole machine to itself.

Ray places, routes, heals and scales; what happens on a machine is the daemon's. `app` has the application, `arguments`
and `serve_config` need no Ray, so that `veltair ray` writes its file anywhere.
"""
